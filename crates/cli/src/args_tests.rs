//! Every help page as a snapshot, every flag a setting, and arguments that must be refused.

use super::*;
use crate::config::Layers;
use clap::CommandFactory;
use clap::error::ErrorKind;

fn parse(line: &str) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(line.split_whitespace())
}

#[test]
fn the_command_is_built_well() {
    Arguments::command().debug_assert();
}

#[test]
fn help_pages_are_as_reviewed() {
    let mut command = Arguments::command().term_width(100);
    command.build();
    insta::assert_snapshot!("help", command.render_help());
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    assert_eq!(names.len(), 17, "16 commands, and help");
    for name in names.into_iter().filter(|name| name != "help") {
        let sub = command.find_subcommand_mut(&name).unwrap();
        insta::assert_snapshot!(format!("help_{name}"), sub.render_help());
    }
}

/// Each long flag of the servers and clients that is not about the command itself is a setting:
/// it reaches the configuration under its own name, and its help shows the true default.
#[test]
fn every_flag_is_a_setting_with_the_default_it_shows() {
    let own = [
        "help",
        "config",
        "json",
        "print-config",
        "key-hex",
        "value",
        "output",
        "force",
        "replicas",
        "best-effort",
        "upsert",
        "soft-pin",
        "hard-pin",
        "group",
        "expire",
        "regex",
        "guard-of",
    ];
    let command = Arguments::command();
    for (name, needs) in [("serve", ""), ("master", ""), ("node", ""), ("put", "k"), ("ls", "")] {
        let sub = command.find_subcommand(name).unwrap();
        for arg in sub.get_arguments() {
            let Some(flag) = arg.get_long() else { continue };
            if own.contains(&flag) || (name, flag) == ("ls", "limit") {
                continue;
            }
            let takes = arg.get_action().takes_values();
            let line =
                format!("mooncrate {name} {needs} --{flag} {}", if takes { "x" } else { "" });
            let given = parse(&line).unwrap().given();
            assert_eq!(given.len(), 1, "{line}");
            assert_eq!(given[0].flag, format!("--{flag}"));
            let key = flag.trim_start_matches("no-").replace('-', "_");
            assert_eq!(given[0].key, key);
            let layers = Layers::read(None, [], vec![]).unwrap();
            let default = layers.rows().find(|row| row.0 == key).expect("a setting").1.to_owned();
            let help = arg.get_help().unwrap().to_string();
            if takes {
                assert!(help.contains(&format!("[default: {default}]")), "--{flag}: {help}");
            } else {
                assert_eq!(default, (flag != key.replace('_', "-")).to_string(), "--{flag}");
            }
        }
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for (line, kind) in [
        ("mooncrate", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
        ("mooncrate frob", ErrorKind::InvalidSubcommand),
        ("mooncrate put", ErrorKind::MissingRequiredArgument),
        ("mooncrate rm", ErrorKind::MissingRequiredArgument),
        ("mooncrate put k f --value v", ErrorKind::ArgumentConflict),
        ("mooncrate serve --segmentsize 1", ErrorKind::UnknownArgument),
        ("mooncrate put k --admin x", ErrorKind::UnknownArgument),
        ("mooncrate bench --sizes 1,potato", ErrorKind::ValueValidation),
        ("mooncrate bench --threads 0", ErrorKind::ValueValidation),
        ("mooncrate ls --limit -1", ErrorKind::UnknownArgument),
        ("mooncrate replay", ErrorKind::MissingRequiredArgument),
        ("mooncrate replay t --capacity 16,0", ErrorKind::ValueValidation),
        ("mooncrate replay t --policy lru,mru", ErrorKind::ValueValidation),
        ("mooncrate replay t --block-tokens 0", ErrorKind::ValueValidation),
        ("mooncrate replay t --store --clients 257", ErrorKind::ValueValidation),
        ("mooncrate replay t --bytes-per-token 0", ErrorKind::ValueValidation),
        ("mooncrate replay t --load loop", ErrorKind::ArgumentConflict),
        ("mooncrate replay --load burst", ErrorKind::ValueValidation),
        ("mooncrate replay --load loop --seed -1", ErrorKind::UnknownArgument),
        ("mooncrate replay --load loop --skip-broken", ErrorKind::ArgumentConflict),
        ("mooncrate replay t --seed 2", ErrorKind::ArgumentConflict),
    ] {
        assert_eq!(parse(line).unwrap_err().kind(), kind, "{line}");
    }
}

/// The README says `mooncrate help`, and that is what people type.
#[test]
fn help_is_a_command_too() {
    for (asked, like) in
        [("mooncrate help", "mooncrate --help"), ("mooncrate help put", "mooncrate put --help")]
    {
        let (page, other) = (parse(asked).unwrap_err(), parse(like).unwrap_err());
        assert_eq!(page.kind(), ErrorKind::DisplayHelp, "{asked}");
        assert_eq!(page.exit_code(), 0, "{asked}");
        assert_eq!(page.to_string(), other.to_string(), "{asked}");
    }
}

#[test]
fn common_flags_may_stand_anywhere() {
    for line in ["mooncrate --json stat --log debug", "mooncrate stat --json --log debug"] {
        let args = parse(line).unwrap();
        assert!(args.common.json, "{line}");
        assert_eq!(args.given()[0].value, "debug");
    }
}
