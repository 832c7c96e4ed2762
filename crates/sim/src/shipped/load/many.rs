//! Calls of several keys at once.

use super::{BATCH_MAX, LEASE_MS_MAX, Lane, PAUSE_NANOS_MAX, judge, judged};
use mooncrate_check::Got;
use mooncrate_client::{Error, Opened, PutSession, RangeInto, SessionParts, Stored};
use std::time::Duration;

impl Lane {
    /// Some keys, each once.
    fn some_keys(&mut self) -> Vec<usize> {
        let keys: Vec<usize> = self.keys().collect();
        let many = (1 + self.rng.below(BATCH_MAX) as usize).min(keys.len());
        let first = self.rng.below(keys.len() as u64) as usize;
        keys.into_iter().cycle().skip(first).take(many).collect()
    }

    /// Puts, reads or removes several keys in one call.
    pub(super) fn batch(&mut self) {
        let keys = self.some_keys();
        match self.rng.below(10) {
            0..=3 => self.put(&keys, false),
            4..=6 => self.get_batch(&keys),
            7 => self.get_into_batch(&keys),
            8 => self.ranges_batch(&keys),
            _ => self.remove_batch(&keys),
        }
    }

    fn gets_begin(&self, keys: &[usize]) -> (Vec<u64>, Vec<judge::Key>) {
        let numbers = keys.iter().map(|key| judge::get_begins(self.process, *key)).collect();
        (numbers, keys.iter().copied().map(judge::key).collect())
    }

    fn get_batch(&self, keys: &[usize]) {
        let (numbers, keys) = self.gets_begin(keys);
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let got = self.client.get_batch(&asked);
        for ((number, key), got) in numbers.into_iter().zip(&keys).zip(got) {
            judge::get_ended(number, judged(self.plan.flips, got, key));
        }
    }

    fn get_into_batch(&self, keys: &[usize]) {
        let (numbers, keys) = self.gets_begin(keys);
        let mut rooms = vec![vec![0; self.plan.value_bytes_max as usize]; keys.len()];
        let mut items: Vec<(&[u8], &mut [u8])> = keys
            .iter()
            .zip(&mut rooms)
            .map(|(key, room)| (&key.bytes[..], &mut room[..]))
            .collect();
        let lengths = self.client.get_into_batch(&mut items);
        for (((number, key), length), room) in
            numbers.into_iter().zip(&keys).zip(lengths).zip(&rooms)
        {
            let got = length.map(|len| len.map(|len| room[..len].to_vec()));
            judge::get_ended(number, judged(self.plan.flips, got, key));
        }
    }

    /// Reads each value as one range, after asking how long they are.
    fn ranges_batch(&self, keys: &[usize]) {
        let (numbers, keys) = self.gets_begin(keys);
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let lengths = self.client.lengths_near(&asked);
        let mut rooms: Vec<Vec<u8>> =
            lengths.iter().map(|len| vec![0; len.unwrap_or(0) as usize + 1]).collect();
        let mut ranges: Vec<[RangeInto<'_>; 2]> = rooms
            .iter_mut()
            .map(|room| {
                let len = room.len() - 1;
                let (value, more) = room.split_at_mut(len);
                [(0, value), (len as u64, more)].map(|(start, into)| RangeInto { start, into })
            })
            .collect();
        let mut items: Vec<(&[u8], &mut [RangeInto<'_>])> =
            asked.iter().zip(&mut ranges).map(|(key, ranges)| (*key, &mut ranges[..])).collect();
        let read = self.client.get_ranges_batch(&mut items);
        for ((((number, key), length), read), mut room) in
            numbers.into_iter().zip(&keys).zip(lengths).zip(read).zip(rooms)
        {
            let got = match read {
                Ok(None) => Ok(None),
                Err(error) => Err(error),
                Ok(Some(read)) => match read[..] {
                    [Ok(_), Err(_)] if length.is_some() => {
                        room.pop();
                        Ok(Some(room))
                    }
                    // Its length was unknown, or is that of another value.
                    _ => {
                        judge::get_ended(number, Got::Failed);
                        continue;
                    }
                },
            };
            judge::get_ended(number, judged(self.plan.flips, got, key));
        }
    }

    fn remove_batch(&mut self, keys: &[usize]) {
        let numbers: Vec<u64> =
            keys.iter().map(|key| judge::remove_begins(self.process, *key)).collect();
        let keys: Vec<judge::Key> = keys.iter().copied().map(judge::key).collect();
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let force = self.rng.chance(500);
        let removed = self.client.remove_batch(&asked, force);
        let each = removed.map_or_else(
            |_| vec![false; keys.len()],
            |removed| removed.iter().map(Result::is_ok).collect(),
        );
        for (number, done) in numbers.into_iter().zip(each) {
            judge::remove_ended(number, done);
        }
    }

    /// Writes several values in parts, which are ended in one call.
    pub(super) fn write_sessions(&mut self) {
        let keys = self.some_keys();
        let calls: Vec<(u64, judge::Key, Vec<u8>)> = keys
            .iter()
            .map(|at| {
                let (number, value) = self.value(*at, false);
                (number, judge::key(*at), value)
            })
            .collect();
        let asks: Vec<(&[u8], u64)> =
            calls.iter().map(|(_, key, value)| (&key.bytes[..], value.len() as u64)).collect();
        let config = self.client.put_config().clone();
        let opened = self.client.put_sessions(&asks, &config);
        self.rest(PAUSE_NANOS_MAX);
        let mut open: Vec<(u64, &[u8], PutSession)> = Vec::new();
        for ((number, _, value), session) in calls.iter().zip(opened) {
            match session {
                Ok(session) => open.push((*number, value, session)),
                Err(_) => judge::put_ended(*number, false),
            }
        }
        let whole: Vec<[(u64, &[u8]); 1]> =
            open.iter().map(|(_, value, _)| [(0, *value)]).collect();
        let parts: Vec<SessionParts<'_>> =
            open.iter().zip(&whole).map(|((.., session), part)| (session, &part[..])).collect();
        for written in self.client.sessions_write(&parts) {
            self.say(0, &written);
        }
        self.rest(PAUSE_NANOS_MAX);
        let sessions: Vec<&PutSession> = open.iter().map(|(.., session)| session).collect();
        let ended: Vec<bool> = if self.rng.chance(200) {
            self.client.sessions_revoke(&sessions).iter().map(|_| false).collect()
        } else {
            self.client.sessions_end(&sessions).iter().map(Result::is_ok).collect()
        };
        for ((number, ..), ended) in open.iter().zip(ended) {
            judge::put_ended(*number, ended);
        }
    }

    /// Holds several values at once and reads each whole.
    pub(super) fn read_sessions(&mut self) {
        let keys = self.some_keys();
        let (numbers, keys) = self.gets_begin(&keys);
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let lease = Duration::from_millis(1 + self.rng.below(LEASE_MS_MAX));
        let opened = self.client.get_sessions(&asked, lease);
        self.rest(PAUSE_NANOS_MAX);
        let mut open = Vec::new();
        for ((number, key), one) in numbers.into_iter().zip(&keys).zip(opened) {
            match one {
                Ok(Opened::Session(session)) => {
                    let room = vec![0; session.value_len() as usize];
                    open.push((number, key, session, room));
                }
                Ok(Opened::Missing) => judge::get_ended(number, Got::Miss),
                Ok(Opened::Writing) | Err(_) => judge::get_ended(number, Got::Failed),
            }
        }
        let mut ranges: Vec<_> = open
            .iter_mut()
            .map(|(.., session, room)| (&*session, [RangeInto { start: 0, into: room }]))
            .collect();
        let mut items: Vec<_> =
            ranges.iter_mut().map(|(session, ranges)| (*session, &mut ranges[..])).collect();
        let read = self.client.sessions_ranges(&mut items);
        for ((number, key, _, room), read) in open.into_iter().zip(read) {
            let whole = read.and_then(|mut one| one.pop().expect("one result per range"));
            let got: Result<_, Error> = whole.map(|_| Some(room));
            judge::get_ended(number, judged(self.plan.flips, got, key));
        }
    }

    /// Stores a value that lies in pieces, dearer than others, evicted with others, or near some node.
    pub(super) fn put_with_config(&mut self, at: usize) {
        let (number, value) = self.value(at, false);
        let config = self.put_config(at);
        let cut = self.rng.below(value.len() as u64 + 1);
        let (first, rest) = value.split_at(cut as usize);
        let parts = [first, rest];
        let key = judge::key(at);
        let done = if self.rng.chance(500) {
            self.client.put_parts(&key.bytes, &parts, &config)
        } else {
            let items = [(&key.bytes[..], &parts[..])];
            self.client.put_parts_batch(&items, &config).pop().expect("one result per item")
        };
        self.say(at, &done);
        judge::put_ended(number, matches!(done, Ok(Stored::New)));
    }
}
