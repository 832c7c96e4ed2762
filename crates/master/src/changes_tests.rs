//! Drains and quotas over the admin HTTP of a real socket, and who may ask for them.

use crate::admin::tests::{Lines, exchange_at, master, request};
use mooncrate_core::TenantId;
use mooncrate_wire::auth::ClusterSecret;
use mooncrate_wire::{Gate, Role};
use serde_json::json;

fn codes(answers: &[(u16, serde_json::Value)]) -> Vec<u16> {
    answers.iter().map(|(code, _)| *code).collect()
}

fn ask(verb: &str, path: &str) -> String {
    request(verb, path, "Content-Length: 0\r\n")
}

#[test]
fn a_drain_is_started_watched_and_ended() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let asked = [
        ask("GET", "/v1/nodes/n/drain"),
        ask("POST", "/v1/nodes/n/drain"),
        ask("GET", "/v1/nodes/n/drain"),
        ask("DELETE", "/v1/nodes/n/drain"),
        ask("GET", "/v1/nodes/n/drain"),
        ask("POST", "/v1/nodes/nobody/drain"),
        ask("POST", "/v1/nodes/n/drain?segment=9"),
        ask("POST", "/v1/nodes/n/drain?mode=burn"),
        ask("DELETE", "/v1/nodes/n/drain?mode=drop"),
        ask("PUT", "/v1/nodes/n/drain"),
    ];
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let answers = exchange_at(Gate::default(), master(&[b"k"]), &asked);
    assert_eq!(codes(&answers), [200, 200, 200, 200, 200, 404, 404, 400, 400, 405]);
    let draining: Vec<_> = answers[..5].iter().map(|(_, body)| body["draining"].clone()).collect();
    assert_eq!(draining, [json!(0), json!(1), json!(1), json!(0), json!(0)]);
    let begun = &answers[2].1;
    assert_eq!((&begun["start_replicas"], &begun["drained"]), (&json!(1), &json!(false)));
    let said = lines.take();
    let audit: Vec<&String> = said.iter().filter(|line| line.contains("audit")).collect();
    assert_eq!(audit.len(), 4, "one line per change that was tried, none for a look: {said:?}");
    // A change that was refused is not told as one that was made.
    let (made, refused) = ("changed by an operator", "a change was refused");
    for (line, parts) in audit.iter().zip([
        [made, "what=\"drain\"", "node n", "done"],
        [made, "what=\"undrain\"", "node n", "done"],
        [refused, "what=\"drain\"", "node nobody", "no node nobody"],
        [refused, "what=\"drain\"", "segment 9 of node n", "not that segment"],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
    }
}

#[test]
fn quotas_are_listed_set_and_cleared() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let asked = [
        ask("PUT", "/v1/quotas/acme?bytes=1000"),
        ask("PUT", "/v1/quotas/@default?bytes=77"),
        ask("GET", "/v1/quotas"),
        ask("DELETE", "/v1/quotas/acme"),
        ask("GET", "/v1/quotas"),
        ask("PUT", "/v1/quotas/acme"),
        ask("PUT", "/v1/quotas/ac!me?bytes=1"),
        ask("POST", "/v1/quotas/acme?bytes=1"),
    ];
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let master = master(&[]);
    let answers = exchange_at(Gate::default(), std::sync::Arc::clone(&master), &asked);
    assert_eq!(codes(&answers), [200, 200, 200, 200, 200, 400, 400, 405]);
    assert_eq!(answers[0].1["quota"], json!(1000));
    let acme = TenantId::named("acme").unwrap();
    let of = |at: usize, tenant: &str| {
        let rows = answers[at].1["quotas"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["tenant"] == tenant).map(|row| row["quota"].clone())
    };
    assert_eq!(of(2, &acme.to_string()), Some(json!(1000)));
    assert_eq!(of(2, "@default"), Some(json!(77)));
    assert!(of(4, &acme.to_string()).is_none_or(|quota| quota.is_null()));
    // It is the master's own, not a copy for the window.
    let kept = master.cluster_stat().tenants;
    assert!(kept.iter().any(|row| row.tenant == TenantId::DEFAULT && row.quota == Some(77)));
    let said = lines.take();
    let audit: Vec<&String> = said.iter().filter(|line| line.contains("audit")).collect();
    assert_eq!(audit.len(), 3, "{said:?}");
    assert!(audit[0].contains("set quota to 1000 bytes") && audit[0].contains("tenant acme"));
    assert!(audit[2].contains("clear quota"), "{audit:?}");
}

/// Whoever is on the machine may look; changes need an admin token, and leave a line if refused.
#[test]
fn security_changes_need_an_admin_token_where_there_are_tokens() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let secret = ClusterSecret::from_bytes([1; 32]);
    let bearer = |secret: &ClusterSecret, role| {
        let token = secret.derive(role, "").unwrap().to_text();
        format!("Content-Length: 0\r\nAuthorization: Bearer {token}\r\n")
    };
    let (admin, client) = (bearer(&secret, Role::Admin), bearer(&secret, Role::Client));
    let foreign = bearer(&ClusterSecret::from_bytes([2; 32]), Role::Admin);
    let changes = [
        ("POST", "/v1/nodes/n/drain"),
        ("DELETE", "/v1/nodes/n/drain"),
        ("PUT", "/v1/quotas/acme?bytes=5"),
        ("DELETE", "/v1/quotas/acme"),
        ("DELETE", "/v1/keys/k"),
    ];
    let mut asked = vec![ask("GET", "/v1/quotas"), ask("GET", "/v1/keys")];
    for (verb, path) in changes {
        asked.push(ask(verb, path));
        asked.push(request(verb, path, &foreign));
        asked.push(request(verb, path, &client));
    }
    asked.push(request("PUT", "/v1/quotas/acme?bytes=5", &admin));
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let gate = Gate::new(Some(secret), None);
    let answers = exchange_at(gate, master(&[b"k"]), &asked);
    let expected = [vec![200, 200], [401, 401, 403].repeat(5), vec![200]].concat();
    assert_eq!(codes(&answers), expected);
    assert!(answers[2].1["error"].as_str().unwrap().contains("token derive"), "{:?}", answers[2]);
    let said = lines.take();
    let refused: Vec<&String> = said.iter().filter(|line| line.contains("not looked at")).collect();
    assert_eq!(refused.len(), 15, "{said:?}");
    assert!(refused.iter().all(|line| line.contains("a change was refused")), "{said:?}");
    let made = said.iter().filter(|line| line.contains("changed by an operator")).count();
    assert_eq!(made, 1, "the one with an admin's token: {said:?}");
}

/// A name of a caller's choice was escaped in the answer, and so twice for whoever reads it as JSON.
#[test]
fn a_name_is_answered_as_it_was_asked_for() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let asked = [ask("POST", "/v1/nodes/no%5Cbody%0A/drain"), ask("GET", "/v1/keys?li%5Cmit=1")];
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let answers = exchange_at(Gate::default(), master(&[]), &asked);
    assert_eq!(codes(&answers), [404, 400]);
    let error = |at: usize| answers[at].1["error"].as_str().unwrap().to_owned();
    assert!(error(0).starts_with("no node no\\body\n is mounted"), "{}", error(0));
    assert!(error(1).starts_with("li%5Cmit is unknown"), "{}", error(1));
    let said = lines.take().concat();
    // Once, by the log.
    assert!(said.contains("no node no\\\\body\\n is mounted"), "{said}");
}

/// A quota outlives the master that it was told to.
#[test]
fn quotas_come_back_after_a_restart() {
    use crate::{Master, MasterConfig};
    use mooncrate_core::LeaderEpoch;
    let folder = tempfile::tempdir().unwrap();
    let state_file = Some(folder.path().join("master.state"));
    let start = || {
        let config = MasterConfig { state_file: state_file.clone(), ..MasterConfig::default() };
        Master::new(config, LeaderEpoch(1)).unwrap()
    };
    let (a, b) = (TenantId(1), TenantId(2));
    let of = |master: &Master, tenant| {
        let rows = master.cluster_stat().tenants;
        rows.into_iter().find(|row| row.tenant == tenant).and_then(|row| row.quota)
    };
    let first = start();
    first.set_tenant_quota(a, Some(10)).unwrap();
    first.set_tenant_quota(b, Some(20)).unwrap();
    first.set_tenant_quota(b, None).unwrap();
    drop(first);
    let second = start();
    assert_eq!((of(&second, a), of(&second, b)), (Some(10), None));
    // The restart itself keeps it: a second one finds it too.
    drop(second);
    let third = start();
    assert_eq!(of(&third, a), Some(10));
    // Whoever sets one that cannot be kept is told.
    std::fs::remove_dir_all(folder.path()).unwrap();
    std::fs::write(folder.path(), b"in the way").unwrap();
    let error = third.set_tenant_quota(b, Some(5)).unwrap_err();
    assert!(error.to_string().contains("could not be written down"), "{error}");
}
