//! Tests of the master's own steps.

use super::*;
use crate::admin::tests::master;
use mooncrate_wire::auth::ClusterSecret;

const TENANT: TenantId = TenantId::DEFAULT;

/// The story: a writer whose links were gone came back while its puts were given back, a slice at a time,
/// and what it began then was given back with them.
#[test]
fn puts_of_a_writer_that_comes_back_are_its_own() {
    let (master, writer) = (master(&[]), Writer(7));
    let begin = |keys: std::ops::Range<u16>| {
        let names: Vec<[u8; 2]> = keys.map(u16::to_le_bytes).collect();
        let items: Vec<_> = names.iter().map(|key| PutItem::new(key, 1)).collect();
        let mut plans = vec![None; items.len()];
        assert!(master.try_put_start((TENANT, writer), &PutConfig::default(), &items, &mut plans));
        assert!(plans.iter().all(|plan| matches!(plan, Some(Ok(_)))));
    };
    let open = || master.mind().catalog.open_puts();
    begin(0..8);
    master.writer_gone(writer, || true);
    assert_eq!(open(), 8);
    master.writer_gone(writer, || false);
    assert_eq!(open(), 0);
}

/// The story: a put that was READY at its owners when the leader died could not be ended at the next,
/// which did not know its token.
#[test]
fn the_next_leader_of_a_cluster_with_a_secret_knows_the_tokens_of_the_last() {
    let object = ObjectId { epoch: LeaderEpoch(1), sequence: 1 };
    let token = |secret: Option<u8>| {
        let grants = secret.map(|byte| GrantKey::new(&ClusterSecret::from_bytes([byte; 32])));
        token_key(grants.as_ref()).token(object)
    };
    assert_eq!(token(Some(1)), token(Some(1)));
    assert_ne!(token(Some(1)), token(Some(2)));
    assert_ne!(token(None), token(None), "nobody can guess it");
}
