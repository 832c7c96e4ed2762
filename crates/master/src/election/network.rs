//! etcd over the network.

use super::calls::{Answer, Asked, Compare, Done, Entry, Member, Members, Op, Trouble, Txn, Watch};
use etcd_client::{
    Client, CompareOp, ConnectOptions, Error, KeyValue, PutOptions, TxnOp, TxnOpResponse,
    TxnResponse, WatchStream,
};
use std::sync::Arc;
use std::time::Duration;

/// Members that are reached over the network.
#[derive(Debug)]
pub(super) struct Network;

impl Members for Network {
    fn connect<'a>(&'a self, endpoint: &'a str, time: Duration) -> Asked<'a, Arc<dyn Member>> {
        Box::pin(async move {
            let options =
                ConnectOptions::new().with_connect_timeout(time).with_require_leader(true);
            let client = Client::connect([endpoint], Some(options)).await?;
            Ok(Arc::new(Remote(client)) as Arc<dyn Member>)
        })
    }
}

struct Remote(Client);

impl Member for Remote {
    fn grant(&self, seconds: i64) -> Asked<'_, (i64, Duration)> {
        let mut client = self.0.clone();
        Box::pin(async move {
            let granted = client.lease_grant(seconds, None).await?;
            let ttl = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
            Ok((granted.id(), ttl))
        })
    }

    fn keep_alive(&self, lease: i64) -> Asked<'_, bool> {
        let mut client = self.0.clone();
        Box::pin(async move {
            match client.lease_keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(Error::LeaseKeepAliveError(why)) if why.contains("not found") => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn revoke(&self, lease: i64) -> Asked<'_, ()> {
        let mut client = self.0.clone();
        Box::pin(async move {
            client.lease_revoke(lease).await?;
            Ok(())
        })
    }

    fn get(&self, key: &str) -> Asked<'_, Option<Entry>> {
        let (mut client, key) = (self.0.clone(), key.to_owned());
        Box::pin(async move { Ok(client.get(key, None).await?.kvs().first().map(entry)) })
    }

    fn txn(&self, txn: Txn) -> Asked<'_, Done> {
        let mut client = self.0.clone();
        Box::pin(async move { done(&client.txn(their_txn(txn)).await?) })
    }

    fn watch(&self, key: &str) -> Asked<'_, Box<dyn Watch>> {
        let (mut client, key) = (self.0.clone(), key.to_owned());
        Box::pin(async move {
            let stream = client.watch(key, None).await?;
            Ok(Box::new(Watching(stream)) as Box<dyn Watch>)
        })
    }
}

struct Watching(WatchStream);

impl Watch for Watching {
    fn change(&mut self) -> Asked<'_, bool> {
        Box::pin(async move { Ok(self.0.message().await?.is_some()) })
    }
}

fn their_txn(txn: Txn) -> etcd_client::Txn {
    let when: Vec<_> = txn.when.into_iter().map(their_compare).collect();
    let [then, otherwise] =
        [txn.then, txn.otherwise].map(|ops| ops.into_iter().map(their_op).collect::<Vec<_>>());
    etcd_client::Txn::new().when(when).and_then(then).or_else(otherwise)
}

fn their_compare(compare: Compare) -> etcd_client::Compare {
    type Theirs = etcd_client::Compare;
    match compare {
        Compare::Absent(key) => Theirs::version(key, CompareOp::Equal, 0),
        Compare::Value(key, value) => Theirs::value(key, CompareOp::Equal, value),
        Compare::Lease(key, lease) => Theirs::lease(key, CompareOp::Equal, lease),
        Compare::Revision(key, revision) => Theirs::mod_revision(key, CompareOp::Equal, revision),
    }
}

fn their_op(op: Op) -> TxnOp {
    match op {
        Op::Get(key) => TxnOp::get(key, None),
        Op::Put { key, value, lease: 0 } => TxnOp::put(key, value, None),
        Op::Put { key, value, lease } => {
            TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
        }
        Op::Txn(txn) => TxnOp::txn(their_txn(txn)),
    }
}

fn done(answer: &TxnResponse) -> Result<Done, Trouble> {
    let ours = |answer: TxnOpResponse| {
        Ok::<_, Trouble>(match answer {
            TxnOpResponse::Get(get) => Answer::Get(get.kvs().first().map(entry)),
            TxnOpResponse::Put(_) => Answer::Put,
            TxnOpResponse::Txn(txn) => Answer::Txn(done(&txn)?),
            TxnOpResponse::Delete(_) => return Err("a deletion that nobody asked for".into()),
        })
    };
    let answers = answer.op_responses().into_iter().map(ours).collect::<Result<_, Trouble>>()?;
    Ok(Done { succeeded: answer.succeeded(), answers })
}

fn entry(kv: &KeyValue) -> Entry {
    let value = String::from_utf8_lossy(kv.value()).into_owned();
    Entry { value, lease: kv.lease(), revision: kv.mod_revision() }
}
