//! What stands in the address of an admin request: keys and pages of keys. Read by hand, because keys
//! are bytes and need not be text.

use mooncrate_core::key;

/// Keys of a page when nobody says how many.
const PAGE: u32 = 100;
/// Most keys of a page.
const PAGE_MAX: u32 = 1000;

/// Which page of keys is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) prefix: Vec<u8>,
    pub(crate) cursor: u64,
    pub(crate) limit: u32,
}

impl Page {
    /// Reads a query.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let mut page = Self { prefix: Vec::new(), cursor: 0, limit: PAGE };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bytes = unescape(value, Place::Query)
                .ok_or_else(|| format!("{name}: a % is followed by two hexadecimal digits"))?;
            let number = || str::from_utf8(&bytes).ok()?.parse::<u64>().ok();
            match name {
                "prefix" => page.prefix = bytes,
                "cursor" => {
                    page.cursor = number().ok_or("cursor: the `next` of a page is wanted")?;
                }
                "limit" => {
                    let limit = number().filter(|limit| (1..=u64::from(PAGE_MAX)).contains(limit));
                    let wanted = || format!("limit: a number from 1 to {PAGE_MAX} is wanted");
                    page.limit = limit.ok_or_else(wanted)? as u32;
                }
                name => {
                    return Err(format!(
                        "{name} is unknown; prefix, limit and cursor are possible"
                    ));
                }
            }
        }
        Ok(page)
    }
}

/// Which segment of a node is to be drained, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainAsk {
    /// Its index; `None`: all.
    pub(crate) segment: Option<u16>,
    /// Drop what it holds, in place of moving it.
    pub(crate) drop: bool,
}

impl DrainAsk {
    /// Reads a query.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let mut asked = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("segment", index) => {
                    let index = index.parse().map_err(|_| "segment: a number below 65536")?;
                    asked.segment = Some(index);
                }
                ("mode", "move") => asked.drop = false,
                ("mode", "drop") => asked.drop = true,
                _ => {
                    return Err(format!(
                        "{pair} is unknown; segment=N, mode=move and mode=drop are possible"
                    ));
                }
            }
        }
        Ok(asked)
    }
}

/// The bytes of a quota.
pub(crate) fn quota_bytes(query: &str) -> Result<u64, String> {
    let bytes = query.strip_prefix("bytes=").and_then(|text| text.parse().ok());
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "bytes=N is needed, a number above 0; DELETE takes a quota away".to_owned())
}

/// Whether leased objects are to be removed too, as the query says.
pub(crate) fn force(query: &str) -> Result<bool, String> {
    match query {
        "" | "force=false" => Ok(false),
        "force=true" => Ok(true),
        other => Err(format!("{other} is unknown; force=true is possible")),
    }
}

/// The first parameter of this name in a query, with its escapes undone.
pub(crate) fn parameter(query: &str, name: &str) -> Result<Option<Vec<u8>>, String> {
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let Some((_, value)) = pairs.find(|(found, _)| *found == name) else { return Ok(None) };
    let bytes = unescape(value, Place::Query);
    bytes.map(Some).ok_or_else(|| format!("{name}: a % is followed by two hexadecimal digits"))
}

/// The key that a path names.
pub(crate) fn key_of(path: &str) -> Result<Vec<u8>, String> {
    let bytes =
        unescape(path, Place::Path).ok_or("in a path a % is followed by two hexadecimal digits")?;
    key::check(&bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Where escapes stand: a plus is a space in a query and a plus in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Path,
    Query,
}

/// Undoes escapes.
fn unescape(text: &str, place: Place) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match first {
            b'+' if place == Place::Query => (b' ', after),
            b'%' => {
                let digits = str::from_utf8(after.get(..2)?).ok()?;
                // `from_str_radix` takes a sign, an escape has none.
                let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                (u8::from_str_radix(digits, 16).ok().filter(|_| plain)?, &after[2..])
            }
            byte => (byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_as_bytes_and_bad_ones_refused() {
        let page = Page::parse("prefix=a+b%2f%ff&cursor=5&limit=1000").unwrap();
        assert_eq!(page, Page { prefix: b"a b/\xff".to_vec(), cursor: 5, limit: 1000 });
        assert_eq!(Page::parse("").unwrap().limit, PAGE);
        for bad in ["prefix=%f", "prefix=%+1", "prefix=%zz", "cursor=x", "limit=1001", "offset=1"] {
            assert!(Page::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_in_paths_are_bytes() {
        assert_eq!(key_of("a%2Fb+c/%ff").unwrap(), b"a/b+c/\xff");
        for bad in ["", "%", "%4", "%zz", "%+1"] {
            assert!(key_of(bad).is_err(), "{bad}");
        }
        assert!(key_of(&"x".repeat(9000)).is_err(), "too long");
        assert_eq!((force(""), force("force=true")), (Ok(false), Ok(true)));
        assert!(force("force=perhaps").is_err());
    }

    #[test]
    fn drains_and_quotas_are_read_or_refused() {
        let both = DrainAsk { segment: Some(3), drop: true };
        assert_eq!(DrainAsk::parse("segment=3&mode=drop"), Ok(both));
        assert_eq!(DrainAsk::parse(""), Ok(DrainAsk::default()));
        for bad in ["segment=x", "segment=65536", "segment", "mode=burn", "node=a"] {
            assert!(DrainAsk::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(quota_bytes("bytes=5"), Ok(5));
        for bad in ["", "bytes=", "bytes=0", "bytes=-1", "bytes=1GiB", "quota=1"] {
            assert!(quota_bytes(bad).is_err(), "{bad}");
        }
    }
}
