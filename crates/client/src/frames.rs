//! A large batch is asked for in frames. Each is answered or fails alone: what one frame was told stands,
//! whatever becomes of the next.
//!
//! What must stay true: the keys of a frame that failed have its error, each at its own index (G11). A frame
//! is not asked again here: whether that is safe depends on what it asks for, and links repeat what is.

use crate::error::Error;
use crate::put::spread;
use mooncrate_wire::api::Batch;
use mooncrate_wire::master_link::frames;

/// Asks for keys, frame by frame; an error of the whole only if no frame was answered.
pub(crate) fn by_frame<R, E>(
    keys: &[&[u8]],
    mut ask: impl FnMut(&[&[u8]]) -> Batch<R, E>,
) -> Result<Vec<Result<R, Error>>, Error>
where
    Error: From<E>,
{
    let mut results = Vec::with_capacity(keys.len());
    let mut heard = keys.is_empty();
    for part in frames(keys, |key| *key) {
        match ask(part) {
            Ok(answers) => {
                heard = true;
                results.extend(answers.into_iter().map(|one| one.map_err(Error::from)));
            }
            Err(error) => results.extend(spread(error, part.len())),
        }
    }
    if heard {
        return Ok(results);
    }
    // The first has the error as it came.
    results.into_iter().find_map(Result::err).map_or_else(|| Ok(Vec::new()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::error::GetError;
    use mooncrate_core::limits::BATCH_ITEMS_MAX;
    use mooncrate_wire::CallError;

    fn gone() -> CallError {
        CallError::Closed { peer: "a master".into(), awaited: "an answer" }
    }

    /// Three frames, of which the second is lost: 8,192 answers were thrown away with it.
    #[test]
    fn answers_of_other_frames_are_kept() {
        let keys: Vec<[u8; 4]> = (0..3 * BATCH_ITEMS_MAX as u32).map(u32::to_le_bytes).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let mut frame = 0;
        let asked = by_frame(&keys, |part| {
            frame += 1;
            let answer = |key: &&[u8]| Ok::<_, GetError>(key.to_vec());
            if frame == 2 { Err(gone()) } else { Ok(part.iter().map(answer).collect()) }
        });
        let results = asked.unwrap();
        assert_eq!((frame, results.len()), (3, keys.len()));
        for (at, (key, result)) in keys.iter().zip(&results).enumerate() {
            let lost = (BATCH_ITEMS_MAX..2 * BATCH_ITEMS_MAX).contains(&at);
            match result {
                Ok(answer) => assert!(!lost && answer == key, "{at}"),
                Err(error) => assert!(lost && matches!(error, Error::Master(_)), "{at}: {error}"),
            }
        }
    }

    #[test]
    fn a_batch_that_nobody_answered_is_one_error() {
        let ask = |_: &[&[u8]]| Err::<Vec<Result<bool, GetError>>, _>(gone());
        let asked = by_frame(&[&b"a"[..], b"b"], ask);
        assert!(matches!(asked, Err(Error::Master(CallError::Closed { .. }))));
        assert!(by_frame(&[], ask).unwrap().is_empty());
    }
}
