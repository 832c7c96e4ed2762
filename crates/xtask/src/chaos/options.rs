//! What can be typed after `chaos`.

use crate::chaos::report::Marks;
use anyhow::{Context, Result, bail};
use std::time::Duration;

/// The help.
pub(crate) const MENU: &str = "\
usage: cargo xtask chaos [options]

  --minutes M       how long faults are injected (default 10)
  --seconds S       the same, for short runs
  --seed S          what the schedule follows from (default: drawn, and printed)
  --kinds a,b       only these kinds of faults
  --masters 1|3     one master, or three on etcd (default: both, half of the time each)
  --no-namespaces   stay on loopback; only faults that need no privilege
  --operations N    fail with fewer verified operations (default 200,000 per minute)
  --faults N        fail with fewer faults (default 10 per minute)
  --programs DIR    run the mooncrate and mooncrate-bench of this folder, built by somebody else
  --report FILE     write all figures as JSON
  --keep            keep the logs even if all is well
";

/// Faults that keep a node away longer than this wait are left out of shorter runs.
const LONG_FROM: Duration = Duration::from_secs(150);
/// Masters where there are several.
const SEVERAL: usize = 3;

/// A parsed command line.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) kinds: Vec<String>,
    pub(crate) namespaces: bool,
    masters: Option<usize>,
    pub(crate) programs: Option<String>,
    pub(crate) report: Option<String>,
    pub(crate) keep: bool,
    operations: Option<u64>,
    faults: Option<usize>,
}

impl Options {
    /// Reads the words; `None` if only help is wanted.
    pub(crate) fn parse(words: &[&str]) -> Result<Option<Self>> {
        let mut options = Self {
            time: Duration::from_mins(10),
            seed: drawn(),
            kinds: Vec::new(),
            namespaces: true,
            masters: None,
            programs: None,
            report: None,
            keep: false,
            operations: None,
            faults: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().copied().with_context(|| format!("{word} what?"));
            match *word {
                "--minutes" => {
                    options.time = Duration::from_secs_f64(number::<f64>(value()?)? * 60.0);
                }
                "--seconds" => options.time = Duration::from_secs_f64(number(value()?)?),
                "--seed" => options.seed = number(value()?)?,
                "--kinds" => options.kinds = value()?.split(',').map(str::to_owned).collect(),
                "--masters" => {
                    let count = number(value()?)?;
                    anyhow::ensure!(count == 1 || count == SEVERAL, "--masters 1 or {SEVERAL}");
                    options.masters = Some(count);
                }
                "--no-namespaces" => options.namespaces = false,
                "--operations" => options.operations = Some(number(value()?)?),
                "--faults" => options.faults = Some(number(value()?)?),
                "--programs" => options.programs = Some(value()?.to_owned()),
                "--report" => options.report = Some(value()?.to_owned()),
                "--keep" => options.keep = true,
                "help" | "-h" | "--help" => return Ok(None),
                other => bail!("no option '{other}'\n{MENU}"),
            }
        }
        Ok(Some(options))
    }

    /// The legs of the run: how many masters, and for how long.
    pub(crate) fn legs(&self, etcd: bool) -> Result<Vec<(usize, Duration)>> {
        match self.masters {
            Some(SEVERAL) if !etcd => bail!("etcd is not installed (package etcd-server)"),
            Some(masters) => Ok(vec![(masters, self.time)]),
            None if etcd => Ok(vec![(1, self.time / 2), (SEVERAL, self.time / 2)]),
            None => {
                println!(
                    "etcd is not installed (package etcd-server): no run with several masters"
                );
                Ok(vec![(1, self.time)])
            }
        }
    }

    /// Whether there is time for faults that outlast a registration.
    pub(crate) fn long(&self) -> bool {
        self.time >= LONG_FROM
    }

    /// What must be reached; fewer kinds if only some were asked for.
    pub(crate) fn marks(&self, private: bool) -> Marks {
        let seconds = self.time.as_secs();
        let kinds = if private { 12 } else { 8 };
        Marks {
            operations: self.operations.unwrap_or(seconds * 200_000 / 60),
            faults: self.faults.unwrap_or(seconds as usize / 6),
            kinds: if self.kinds.is_empty() { kinds } else { self.kinds.len().min(kinds) },
        }
    }

    /// The line that repeats the schedule.
    pub(crate) fn command(&self) -> String {
        let Self { time, seed, kinds, .. } = self;
        let mut words = vec![format!("./dev chaos --seconds {} --seed {seed}", time.as_secs())];
        if !kinds.is_empty() {
            words.push(format!("--kinds {}", kinds.join(",")));
        }
        if let Some(masters) = self.masters {
            words.push(format!("--masters {masters}"));
        }
        if !self.namespaces {
            words.push("--no-namespaces".to_owned());
        }
        words.join(" ")
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().ok().with_context(|| format!("'{text}' is not a number that fits here"))
}

/// A seed that nobody chose: addresses are random where the system makes them so, and processes differ.
fn drawn() -> u64 {
    let mut bytes = [0; 4];
    let read = std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    if read.is_ok() { u32::from_le_bytes(bytes).into() } else { std::process::id().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_repeats_the_schedule() {
        let words = ["--minutes", "0.5", "--seed", "9", "--kinds", "kill-node,loss-node"];
        let options = Options::parse(&words).unwrap().unwrap();
        let line = options.command();
        assert_eq!(line, "./dev chaos --seconds 30 --seed 9 --kinds kill-node,loss-node");
        let again: Vec<&str> = line.split(' ').skip(2).collect();
        assert_eq!(Options::parse(&again).unwrap().unwrap().command(), line);
        assert_eq!(options.marks(true).kinds, 2);
        let three = Options::parse(&["--masters", "3", "--seed", "1"]).unwrap().unwrap();
        assert_eq!(three.command(), "./dev chaos --seconds 600 --seed 1 --masters 3");
        assert!(Options::parse(&["--masters", "2"]).is_err());
        assert!(Options::parse(&["--minute", "3"]).is_err());
        assert!(Options::parse(&["--seed"]).is_err());
        assert!(Options::parse(&["--help"]).unwrap().is_none());
    }

    #[test]
    fn a_run_has_one_master_and_then_three_where_etcd_is() {
        let legs = |words: &[&str], etcd| Options::parse(words).unwrap().unwrap().legs(etcd);
        let half = Duration::from_secs(30);
        assert_eq!(legs(&["--seconds", "60"], true).unwrap(), [(1, half), (3, half)]);
        assert_eq!(legs(&["--seconds", "60"], false).unwrap(), [(1, 2 * half)]);
        assert_eq!(legs(&["--masters", "3", "--seconds", "30"], true).unwrap(), [(3, half)]);
        assert!(legs(&["--masters", "3"], false).is_err());
    }
}
