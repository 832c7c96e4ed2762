//! A worker that waits, sleeps or draws randomness outside of its world would make a run that no seed fixes. The kernel
//! ends it at the first such call.

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use std::collections::{BTreeMap, HashMap};

/// Calls that nothing in a world has reason to make.
const REFUSED: [c_long; 9] = [
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_epoll_pwait,
    libc::SYS_pselect6,
    libc::SYS_clone3,
];
/// Forms of `futex` that wait, and the bits of an operation that say which form it is.
const WAITS: [libc::c_int; 4] =
    [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, libc::FUTEX_WAIT_REQUEUE_PI];
const FORM: u64 = 0x7f;

/// From now on this thread lives in worlds.
pub(super) fn set() {
    // The library seeds its maps once for each thread.
    drop(HashMap::<u64, u64>::new());
    let set = filter(SeccompAction::KillProcess).and_then(|filter| apply_filter(&filter));
    set.expect("the kernel takes a filter of system calls");
}

fn filter(refuse: SeccompAction) -> Result<BpfProgram, Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        REFUSED.map(|call| (call, Vec::new())).into();
    let form = |wait: libc::c_int| {
        let is = SeccompCmpOp::MaskedEq(FORM);
        let wait = wait.cast_unsigned().into();
        let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, is, wait)?;
        SeccompRule::new(vec![condition])
    };
    let waits = WAITS.into_iter().map(form).collect::<Result<_, BackendError>>()?;
    rules.insert(libc::SYS_futex, waits);
    let here = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refuse, here)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::time::Duration;

    #[test]
    fn who_sleeps_or_draws_is_refused() {
        let tripped = mooncrate_rt::spawn("tripped", || {
            let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
            apply_filter(&filter(refuse).unwrap()).unwrap();
            let mut random = [0; 8];
            let flags = rustix::rand::GetRandomFlags::empty();
            assert_eq!(rustix::rand::getrandom(&mut random, flags), Err(Errno::PERM));
            let second = rustix::time::Timespec::try_from(Duration::from_secs(1)).unwrap();
            let slept = rustix::thread::nanosleep(&second);
            assert!(matches!(slept, rustix::thread::NanosleepRelativeResult::Err(Errno::PERM)));
            // A lock that is free, or is given back, needs no wait.
            drop(std::sync::Mutex::new(1).lock().unwrap());
        });
        tripped.unwrap().join().unwrap();
    }
}
