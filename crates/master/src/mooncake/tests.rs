//! Mooncake's admin HTTP over a real socket, in front of a master whose node holds nothing but promises.

use super::Mooncake;
use crate::admin::routes_with_mooncake;
use crate::admin::tests::{Lines, exchange_over, master, mounting, registry, request};
use crate::{Master, MasterConfig};
use mooncrate_core::error::RemoveError;
use mooncrate_core::plan::{Keep, PutConfig};
use mooncrate_core::time::Deadline;
use mooncrate_core::{LeaderEpoch, Seal, TenantId};
use mooncrate_wire::auth::ClusterSecret;
use mooncrate_wire::message::{PutEndItem, PutItem, SealList};
use mooncrate_wire::{Gate, MasterApi, Role};
use serde_json::{Value, json};
use std::sync::Arc;

fn exchange_at(gate: Gate, master: &Arc<Master>, requests: &[String]) -> Vec<(u16, String)> {
    let wanted = Mooncake { quotas: true };
    let routes =
        routes_with_mooncake(Arc::clone(master), registry(Arc::clone(master)), gate, wanted);
    exchange_over(routes, &requests.iter().map(String::as_str).collect::<Vec<_>>())
}

fn exchange(master: &Arc<Master>, requests: &[String]) -> Vec<(u16, String)> {
    exchange_at(Gate::default(), master, requests)
}

fn get_all(master: &Arc<Master>, paths: &[&str]) -> Vec<(u16, String)> {
    exchange(master, &paths.iter().map(|path| request("GET", path, "")).collect::<Vec<_>>())
}

fn parsed(answers: &[(u16, String)]) -> Vec<(u16, Value)> {
    let json = |body: &str| serde_json::from_str(body).unwrap_or_else(|_| panic!("{body}"));
    answers.iter().map(|(status, body)| (*status, json(body))).collect()
}

fn with_body(verb: &str, path: &str, body: &str) -> String {
    let more = format!("Content-Length: {}\r\n", body.len());
    request(verb, path, &more) + body
}

fn error(code: i32, text: &str) -> Value {
    json!({ "success": false, "error_code": code, "error_message": text })
}

#[test]
fn a_master_alone_serves_and_says_so() {
    let master = master(&[]);
    let answers = get_all(&master, &["/health", "/leader", "/kv_events/status"]);
    let answers = parsed(&answers);
    let health = json!({
        "status": "ok", "role": "leader", "ha_state": "serving", "service_ready": true,
        "leader_address": null, "view_version": null,
    });
    assert_eq!(answers[0], (200, health));
    let leader = json!({ "present": false, "leader_address": null, "view_version": null });
    assert_eq!(answers[1], (200, leader));
    assert_eq!(answers[2].1["enabled"], json!(false));
    let texts = get_all(&master, &["/role", "/ha_status", "/nowhere", "/metrics/summary"]);
    assert_eq!(texts[0], (200, "leader".to_owned()));
    assert_eq!(texts[1], (200, "serving".to_owned()));
    assert_eq!(texts[2], (404, "404 Not Found".to_owned()));
    let summary = &texts[3].1;
    for part in [
        "role=leader, state=serving, service_ready=true, master={Mem Storage: 0 B / 1.00 MB",
        "Keys: 0 (soft-pinned: 0) | Clients: 1",
        "ha={",
    ] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
    assert_eq!(summary.lines().count(), 1);
    let verbs = [with_body("POST", "/health", ""), with_body("DELETE", "/query_key?key=a", "")];
    for answer in exchange(&master, &verbs) {
        assert_eq!(answer, (404, "404 Not Found".to_owned()), "a wrong verb is an unknown path");
    }
    // Ours are still there.
    assert_eq!(get_all(&master, &["/v1/usage"])[0].0, 200);
}

#[test]
fn keys_are_looked_at_and_nothing_is_leased() {
    let master = master(&[b"a b/\xc3\xa4", b"c"]);
    let before = master.cluster_stat();
    let paths = [
        "/query_key?key=a%20b%2F%C3%A4",
        "/query_key?key=nobody",
        "/query_key",
        "/query_key?key=%zz",
        "/batch_query_keys?keys=c,nobody",
        "/batch_query_keys?keys=c%2Cnobody",
        "/batch_query_keys?keys=",
    ];
    let answers = parsed(&get_all(&master, &paths));
    let (status, hit) = &answers[0];
    assert_eq!((*status, &hit["success"]), (200, &json!(true)));
    let copy = &hit["data"][0];
    assert_eq!((&copy["size_"], &copy["protocol_"]), (&json!(100), &json!("tcp")));
    assert!(copy["buffer_address_"].is_u64() && copy["transport_endpoint_"].is_string(), "{hit}");
    assert_eq!(copy.as_object().unwrap().len(), 4);
    assert_eq!(answers[1], (404, error(-704, "OBJECT_NOT_FOUND")));
    assert_eq!(answers[2], (400, error(-600, "Missing key query parameter")));
    assert_eq!((answers[3].0, &answers[3].1["error_code"]), (400, &json!(-600)));
    let missing = json!({
        "ok": false, "error": "OBJECT_NOT_FOUND", "values": null, "disk_values": null,
        "local_disk_values": null, "nof_values": null,
    });
    for many in &answers[4..6] {
        let data = &many.1["data"];
        assert_eq!((many.0, data.as_object().unwrap().len()), (200, 2));
        assert_eq!((&data["c"]["ok"], &data["c"]["error"]), (&json!(true), &Value::Null));
        assert_eq!(data["c"]["values"][0]["size_"], json!(100));
        assert_eq!(data["nobody"], missing);
    }
    assert_eq!(answers[6].0, 400);
    assert!(answers[6].1["error"].as_str().unwrap().starts_with("No keys provided."));
    // Whoever only looks counts nothing and holds nothing: the key can go at once.
    assert_eq!(master.cluster_stat().counters, before.counters);
    let scope = master.scope(TenantId::DEFAULT);
    let removed = scope.remove(false, &[b"c"], Deadline(0)).unwrap();
    assert!(matches!(removed[0], Err(RemoveError::Deferred { .. })), "{removed:?}");
}

#[test]
fn all_keys_stand_in_lines() {
    let answers = get_all(&master(&[b"one", b"two\nlines"]), &["/get_all_keys"]);
    let mut lines: Vec<&str> = answers[0].1.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "two\\nlines"]);
}

#[test]
fn segments_are_nodes_under_their_names() {
    let empty = Master::new(MasterConfig::default(), LeaderEpoch(3)).unwrap();
    assert_eq!(get_all(&empty, &["/get_all_segments"])[0], (200, String::new()));
    let (mounted, _) = mounting();
    let told = get_all(&mounted, &["/get_all_segments"]);
    assert_eq!(told[0], (200, String::new()), "puts would be refused");
    let master = master(&[b"k"]);
    let texts = get_all(
        &master,
        &["/get_all_segments", "/query_segment?segment=n", "/query_segment?segment=x"],
    );
    assert_eq!(texts[0], (200, "n\n".to_owned()));
    let used = master.cluster_stat().used_bytes;
    let shown = format!("n\nUsed(bytes): {used}\nCapacity(bytes) : 1048576\n");
    assert_eq!(texts[1], (200, shown));
    assert_eq!(texts[2], (500, "Failed to query segment".to_owned()));
    let paths = [
        "/api/v1/segments/status?segment=n",
        "/api/v1/segments/status",
        "/api/v1/segments/status?segment=x",
        "/get_segments_detail",
    ];
    let answers = parsed(&get_all(&master, &paths));
    let ok = json!({
        "success": true, "segment": "n", "status": 1, "status_name": "OK", "error_code": 0,
        "error_message": "",
    });
    assert_eq!(answers[0], (200, ok));
    assert_eq!(answers[1], (400, error(-600, "Missing segment query parameter")));
    assert_eq!(answers[2], (404, error(-101, "SEGMENT_NOT_FOUND")));
    let detail = &answers[3].1;
    assert_eq!(detail["total_segments"], json!(1));
    let row = &detail["segments"][0];
    assert_eq!(row["segment_name"], json!("n"));
    assert_eq!(row["size_human"], json!("0.000976562 GiB"));
    assert_eq!(row["allocator_used_bytes"], json!(used));
    assert_eq!(row.as_object().unwrap().len(), 12);
}

#[test]
fn a_drain_job_is_begun_watched_and_canceled() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let master = master(&[b"k"]);
    let post = |body: &str| with_body("POST", "/api/v1/drain_jobs", body);
    let begun = parsed(&exchange(
        &master,
        &[
            post(r#"{"segments":["n"],"target_segments":[],"max_concurrency":4}"#),
            post(r#"{"segments":["n"]}"#),
            post(r#"{"segments":["x"]}"#),
            post(r#"{"segments":[]}"#),
            post(r#"{"segments":["n"],"target_segments":["m"]}"#),
            post("segments"),
        ],
    ));
    let id = begun[0].1["job_id"].as_str().unwrap().to_owned();
    assert_eq!(id, "3-1", "the epoch and a number");
    assert_eq!((begun[0].0, &begun[0].1["status"]), (200, &json!("CREATED")));
    let codes: Vec<_> =
        begun[1..].iter().map(|(status, body)| (*status, body["error_code"].clone())).collect();
    let expected = [(409, -1010), (404, -101), (400, -600), (400, -600), (400, -600)];
    assert_eq!(codes, expected.map(|(status, code)| (status, json!(code))));
    let query = format!("/api/v1/drain_jobs/query?job_id={id}");
    let cancel = with_body("POST", &format!("/api/v1/drain_jobs/cancel?job_id={id}"), "");
    let answers = parsed(&exchange(
        &master,
        &[
            request("GET", &query, ""),
            request("GET", "/api/v1/segments/status?segment=n", ""),
            cancel.clone(),
            request("GET", &query, ""),
            request("GET", "/api/v1/segments/status?segment=n", ""),
            cancel,
            request("GET", "/api/v1/drain_jobs/query?job_id=9-9", ""),
            request("GET", "/api/v1/drain_jobs/query", ""),
        ],
    ));
    let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 409, 404, 400]);
    let running = &answers[0].1;
    assert_eq!((&running["status"], &running["status_name"]), (&json!(2), &json!("RUNNING")));
    assert_eq!((&running["type_name"], &running["segments"]), (&json!("DRAIN"), &json!(["n"])));
    assert_eq!(running["active_units"], json!(1));
    assert_eq!(answers[1].1["status_name"], json!("DRAINING"));
    assert_eq!(answers[2].1["status"], json!("CANCELED"));
    assert_eq!(answers[3].1["status"], json!(5));
    assert_eq!(answers[4].1["status_name"], json!("OK"));
    assert_eq!(answers[6].1, error(-1402, "JOB_NOT_FOUND"));
    let said = lines.take();
    let audit: Vec<&String> = said.iter().filter(|line| line.contains("audit")).collect();
    assert_eq!(audit.len(), 5, "three that were tried, two cancels: {audit:?}");
}

/// A node that is empty may leave: its job has succeeded and stays so. One that leaves earlier has
/// failed.
#[test]
fn a_job_ends_with_its_drains_and_stays_as_it_ended() {
    for (keys, state) in [(&[][..], "SUCCEEDED"), (&[&b"k"[..]][..], "FAILED")] {
        let master = master(keys);
        let post = with_body("POST", "/api/v1/drain_jobs", r#"{"segments":["n"]}"#);
        let id = parsed(&exchange(&master, &[post]))[0].1["job_id"].clone();
        master.tick();
        let entry = master.node_entries().remove(0);
        master.unmount_segments(entry.info.node, &entry.segments);
        master.tick();
        let path = format!("/api/v1/drain_jobs/query?job_id={}", id.as_str().unwrap());
        for _ in 0..2 {
            let job = parsed(&get_all(&master, &[&path])).remove(0).1;
            assert_eq!(job["status_name"], json!(state), "{job}");
        }
    }
}

#[test]
fn everything_is_removed_of_one_tenant_or_of_all() {
    let master = master(&[b"a", b"b"]);
    let post = |query: &str| with_body("POST", &format!("/api/v1/remove_all{query}"), "");
    let asked = [post("?tenant_id=acme"), post("?force=perhaps"), post("?tenant_id=ac!me")];
    let answers = parsed(&exchange(&master, &asked));
    assert_eq!(answers[0], (200, json!({ "success": true, "removed_count": 0 })));
    assert_eq!((answers[1].0, answers[2].0), (400, 400));
    let keys = get_all(&master, &["/get_all_keys"]);
    assert_eq!(keys[0].1.lines().count(), 2, "another tenant's are not touched");
}

#[test]
fn quotas_are_set_shown_and_cleared_where_they_are_wanted() {
    let master = master(&[b"k"]);
    let path = "/api/v1/tenant_quotas";
    let of = |name: &str| format!("{path}?tenant_id={name}");
    let answers = parsed(&exchange(
        &master,
        &[
            with_body("PUT", &of("acme"), r#"{"requested_quota_bytes":1000}"#),
            request("GET", &of("acme"), ""),
            request("GET", path, ""),
            with_body("DELETE", &of("acme"), ""),
            with_body("DELETE", &of("acme"), ""),
            with_body("PUT", &of("acme"), r#"{"requested_quota_bytes":0}"#),
            with_body("PUT", path, r#"{"requested_quota_bytes":1}"#),
            request("GET", &of("default"), ""),
            request("GET", &of("nobody"), ""),
        ],
    ));
    let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 404, 400, 400, 200, 404]);
    let data = json!({
        "tenant_id": "acme", "requested_quota_bytes": 1000, "effective_quota_bytes": 1000,
        "charged_bytes": 0, "admission_closed": false, "over_quota": false,
        "has_explicit_policy": true,
    });
    assert_eq!(answers[1].1, json!({ "success": true, "data": data }));
    assert_eq!(answers[2].1["data"].as_array().unwrap().len(), 2);
    assert!(answers[7].1["data"]["charged_bytes"].as_u64().unwrap() >= 100);
    assert_eq!(answers[8].1, error(-1701, "TENANT_NOT_REGISTERED"));

    let plain = Mooncake::default();
    let routes = routes_with_mooncake(
        Arc::clone(&master),
        registry(Arc::clone(&master)),
        Gate::default(),
        plain,
    );
    let refused = parsed(&exchange_over(routes, &[&request("GET", path, "")]));
    assert_eq!((refused[0].0, &refused[0].1["error_code"]), (409, &json!(-1011)));
}

#[test]
fn metrics_have_their_names_and_ours() {
    let master = master(&[b"k"]);
    // A put that nobody ends yet is no key.
    let config = PutConfig { keep: Keep::Soft { ttl_ms: 60_000 }, ..PutConfig::default() };
    let scope = master.scope(TenantId::DEFAULT);
    let item = PutItem::new(b"soft", 100);
    let token =
        scope.put_start(&config, &[item], Deadline::NEVER).unwrap()[0].as_ref().unwrap().token;
    assert!(get_all(&master, &["/metrics"])[0].1.contains("\nmaster_key_count 1\n"));
    let seals = SealList::encode(&[Seal::default()]);
    let end = PutEndItem { key: b"soft", token, seals: SealList::of(&seals) };
    assert_eq!(scope.put_end(&[end], Deadline::NEVER).unwrap(), [Ok(())]);
    let (status, text) = get_all(&master, &["/metrics"]).remove(0);
    assert_eq!(status, 200);
    for line in [
        "# TYPE master_key_count gauge",
        "master_key_count 2",
        "master_soft_pin_key_count 1",
        "master_active_clients 1",
        "master_total_capacity_bytes 1048576",
        "# TYPE master_put_start_requests_total counter",
        "# TYPE mooncrate_master_puts_total counter",
        "mooncrate_master_puts_total 2",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
    }
    assert!(!text.contains("# EOF") && !text.contains("master_promotion"), "{text}");
}

/// Whoever is on the machine may look; changes need an admin token, and leave a line if refused.
#[test]
fn security_mooncakes_changes_need_an_admin_token_where_there_are_tokens() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let secret = ClusterSecret::from_bytes([1; 32]);
    let token = secret.derive(Role::Admin, "").unwrap().to_text();
    let bearer = format!("Content-Length: 0\r\nAuthorization: Bearer {token}\r\n");
    let changes = [
        ("POST", "/api/v1/drain_jobs"),
        ("POST", "/api/v1/drain_jobs/cancel?job_id=3-1"),
        ("PUT", "/api/v1/tenant_quotas?tenant_id=a"),
        ("DELETE", "/api/v1/tenant_quotas?tenant_id=a"),
        ("POST", "/api/v1/remove_all?force=true"),
    ];
    let mut asked = vec![request("GET", "/health", "")];
    asked.extend(changes.iter().map(|(verb, path)| with_body(verb, path, "")));
    asked.push(request("POST", "/api/v1/remove_all?tenant_id=a", &bearer));
    let gate = Gate::new(Some(secret), None);
    let answers = exchange_at(gate, &master(&[b"k"]), &asked);
    let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 401, 401, 401, 401, 401, 200]);
    let said = lines.take();
    assert_eq!(said.iter().filter(|line| line.contains("not looked at")).count(), 5, "{said:?}");
}

/// The story: each of 40 callers that took nothing had its own list of all keys collected, 64 MiB at most. A list that
/// is longer than a page is made while it is taken.
#[test]
fn a_long_list_of_keys_comes_in_pages() {
    let names: Vec<String> = (0..600).map(|n| format!("key-{n:04}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let answers = get_all(&master(&keys), &["/get_all_keys"]);
    let (status, body) = &answers[0];
    assert_eq!(*status, 200);
    let (mut text, mut rest, mut chunks) = (String::new(), body.as_str(), 0);
    loop {
        let (size, behind) = rest.split_once("\r\n").expect("its length is not known ahead");
        let size = usize::from_str_radix(size, 16).expect("its length is not known ahead");
        if size == 0 {
            break;
        }
        text.push_str(&behind[..size]);
        (rest, chunks) = (&behind[size + 2..], chunks + 1);
    }
    let mut listed: Vec<&str> = text.lines().collect();
    listed.sort_unstable();
    assert_eq!(listed, names);
    assert!(chunks > 1, "{chunks}");
}
