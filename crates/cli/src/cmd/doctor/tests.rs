//! The screen as people see it.

use super::*;

fn finding(name: &'static str, grade: Grade, required: bool) -> Finding {
    let fix = (grade != Grade::Ok).then(|| format!("fix {name}"));
    let found = format!("{name} as found");
    Finding { name, grade, found, why: "It matters.", fix, required }
}

#[test]
fn worries_come_first_with_their_remedies() {
    let findings = [
        finding("cores", Grade::Ok, false),
        finding("huge pages", Grade::Better, false),
        finding("etcd", Grade::Missing, false),
    ];
    insta::assert_snapshot!("doctor", screen(&findings));
    assert_eq!(json(&findings)["fit"], json!(true));
    assert_eq!(json(&findings)["findings"][1]["grade"], json!("could be better"));
    assert!(screen(&findings[..1]).starts_with("This machine has all"));
}

#[test]
fn only_what_is_required_makes_a_machine_unfit() {
    let findings = [finding("memfd", Grade::Missing, true), finding("etcd", Grade::Missing, false)];
    assert_eq!(lacking(&findings), ["memfd"]);
    assert!(screen(&findings).starts_with("Mooncrate cannot run here without: memfd."));
    assert_eq!(json(&findings)["fit"], json!(false));
}
