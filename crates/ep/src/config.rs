//! The shape of an exchange: how many ranks, tokens, experts, and how long a row is. A [`Shape`] that exists
//! is valid; everything else is a function of it.

use crate::bf16::BF16_BYTES;
use mooncrate_heap::World;
use std::time::Duration;

/// Most experts of a token: a metadata row has so many places.
pub const TOP_K_MAX: u32 = 8;
/// Most tokens of a rank in a step: a violation names its token in 16 bits.
pub const TOKENS_MAX: u32 = 4096;
/// Most elements of a token.
pub const HIDDEN_MAX: u32 = 65_536;
/// Most experts of a rank: the pack kernel counts them in shared memory.
pub const LOCAL_EXPERTS_MAX: u32 = 1024;

/// What a token is made of on its way to the experts. Results are bf16 always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// bf16 elements.
    #[default]
    Bf16,
    /// e4m3 elements with a scale for each 128 of them ([`crate::fp8`]).
    Fp8,
}

/// What an exchange is made for. The default is DeepSeek-V3's decode step on eight ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpConfig {
    /// Ranks: 2 to 8.
    pub world: usize,
    /// Most tokens of a rank in a step (`T_cap`); each step may have any number up to it, also none.
    pub tokens_max: usize,
    /// Experts of each token (`K`).
    pub top_k: usize,
    /// Elements of a token (`H`), a multiple of 8.
    pub hidden: usize,
    /// Experts of all ranks together; each rank has an equal share, in order.
    pub experts: usize,
    /// Rows that one expert has room for (`m_cap`); `None`: as many as can come, so that none overflows.
    pub rows_max: Option<usize>,
    /// What tokens are made of on their way to the experts.
    pub payload: Payload,
    /// How long a rank waits for the others in one phase.
    pub timeout: Duration,
    /// The same for the first phase after a start or a reset: the others may still be loading.
    pub first_timeout: Duration,
}

impl Default for EpConfig {
    fn default() -> Self {
        Self {
            world: 8,
            tokens_max: 32,
            top_k: 8,
            hidden: 7168,
            experts: 256,
            rows_max: None,
            payload: Payload::Bf16,
            timeout: Duration::from_secs(5),
            first_timeout: Duration::from_mins(1),
        }
    }
}

/// Why a configuration makes no exchange.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside of its bounds.
    #[error("{what} is {given}; choose {least} to {most}")]
    OutOfRange {
        /// Which one.
        what: &'static str,
        /// What was asked for.
        given: usize,
        /// The least that works.
        least: usize,
        /// The most.
        most: usize,
    },
    /// Experts that cannot be shared equally.
    #[error(
        "{experts} experts on {world} ranks: the world must divide the experts; add {missing} experts or \
         choose another world"
    )]
    Uneven {
        /// How many experts.
        experts: usize,
        /// How many ranks.
        world: usize,
        /// How many experts are missing up to the next multiple.
        missing: usize,
    },
    /// A row that is no number of 16-byte pieces.
    #[error("hidden is {0}; rows move in pieces of 16 bytes, so it must be a multiple of 8")]
    Hidden(usize),
    /// Blocks of fp8 elements that would have no scale of their own.
    #[error(
        "hidden is {0}; fp8 has a scale for each 128 elements, so it must be a multiple of 128"
    )]
    Blocks(usize),
    /// A wait without an end, or without a beginning.
    #[error("{0} is zero; every wait needs some time")]
    NoTime(&'static str),
}

/// Numbers that fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    world: World,
    tokens_max: u32,
    top_k: u32,
    hidden: u32,
    experts: u32,
    rows_max: u32,
    payload: Payload,
}

impl EpConfig {
    /// The shape, or the first thing that is wrong with it.
    pub fn shape(&self) -> Result<Shape, ConfigError> {
        let within = |what, given, least: u32, most: u32| {
            let (least, most) = (least as usize, most as usize);
            if (least..=most).contains(&given) {
                Ok(given as u32)
            } else {
                Err(ConfigError::OutOfRange { what, given, least, most })
            }
        };
        let ranks = within("world", self.world, 2, mooncrate_heap::RANKS_MAX as u32)?;
        let world = World::new(self.world).expect("two to eight ranks are a world");
        let tokens_max = within("tokens_max", self.tokens_max, 1, TOKENS_MAX)?;
        let hidden = within("hidden", self.hidden, 8, HIDDEN_MAX)?;
        if !hidden.is_multiple_of(8) {
            return Err(ConfigError::Hidden(self.hidden));
        }
        if self.payload == Payload::Fp8 && !self.hidden.is_multiple_of(crate::fp8::BLOCK) {
            return Err(ConfigError::Blocks(self.hidden));
        }
        let experts = within("experts", self.experts, ranks, ranks * LOCAL_EXPERTS_MAX)?;
        if !experts.is_multiple_of(ranks) {
            let missing = (experts.next_multiple_of(ranks) - experts) as usize;
            let (experts, world) = (self.experts, self.world);
            return Err(ConfigError::Uneven { experts, world, missing });
        }
        let top_k = within("top_k", self.top_k, 1, TOP_K_MAX.min(experts))?;
        let slots = ranks * tokens_max;
        let rows_max = within("rows_max", self.rows_max.unwrap_or(slots as usize), 1, slots)?;
        for (what, span) in [("timeout", self.timeout), ("first_timeout", self.first_timeout)] {
            if span.is_zero() {
                return Err(ConfigError::NoTime(what));
            }
        }
        let payload = self.payload;
        Ok(Shape { world, tokens_max, top_k, hidden, experts, rows_max, payload })
    }
}

impl Shape {
    /// The ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// How many there are.
    pub fn ranks(&self) -> u32 {
        self.world.len() as u32
    }

    /// Most tokens of a rank.
    pub fn tokens_max(&self) -> u32 {
        self.tokens_max
    }

    /// Experts of each token.
    pub fn top_k(&self) -> u32 {
        self.top_k
    }

    /// Elements of a token.
    pub fn hidden(&self) -> u32 {
        self.hidden
    }

    /// Experts of all ranks.
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// Experts of each rank.
    pub fn local_experts(&self) -> u32 {
        self.experts / self.ranks()
    }

    /// Rows that one expert has room for.
    pub fn rows_max(&self) -> u32 {
        self.rows_max
    }

    /// Tokens that a rank can get in a step: a slot for each token of each rank.
    pub fn slots(&self) -> u32 {
        self.ranks() * self.tokens_max
    }

    /// Where token `token` of rank `source` lies at every rank. The same in each step, so that nobody has to
    /// ask for room.
    pub fn slot(&self, source: u32, token: u32) -> u32 {
        source * self.tokens_max + token
    }

    /// What tokens are made of on their way to the experts.
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Bytes of a token on its way to the experts.
    pub fn token_bytes(&self) -> u64 {
        match self.payload {
            Payload::Bf16 => self.row_bytes(),
            Payload::Fp8 => crate::fp8::token_bytes(self.hidden),
        }
    }

    /// The same in pairs of bytes: the elements of a slice of tokens.
    pub fn token_words(&self) -> usize {
        (self.token_bytes() / 2) as usize
    }

    /// Bytes of a result.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.hidden) * BF16_BYTES
    }

    /// Rows of all experts of a rank, `[local_experts, rows_max]`.
    pub fn packed_rows(&self) -> u64 {
        u64::from(self.local_experts()) * u64::from(self.rows_max)
    }

    /// Bytes of the packed tokens of a rank.
    pub fn packed_bytes(&self) -> u64 {
        self.packed_rows() * self.token_bytes()
    }

    /// Bytes of what its experts make of them.
    pub fn results_bytes(&self) -> u64 {
        self.packed_rows() * self.row_bytes()
    }

    /// Bytes of the tokens of a rank, with room for `tokens_max`.
    pub fn batch_bytes(&self) -> u64 {
        u64::from(self.tokens_max) * self.token_bytes()
    }

    /// Bytes of their results.
    pub fn output_bytes(&self) -> u64 {
        u64::from(self.tokens_max) * self.row_bytes()
    }

    /// The same for the same shape, different for most others: FNV-1a.
    pub fn hash(&self) -> u64 {
        let all = [
            self.ranks(),
            self.tokens_max,
            self.top_k,
            self.hidden,
            self.experts,
            self.rows_max,
            self.payload as u32,
            // The version of the layout and of the words.
            1,
        ];
        all.iter().flat_map(|number| number.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, b| {
            (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut EpConfig)) -> String {
        let mut config = EpConfig::default();
        change(&mut config);
        config.shape().unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_deepseek_v3_on_eight_ranks() {
        let shape = EpConfig::default().shape().unwrap();
        assert_eq!((shape.ranks(), shape.tokens_max(), shape.top_k()), (8, 32, 8));
        assert_eq!((shape.hidden(), shape.experts(), shape.local_experts()), (7168, 256, 32));
        assert_eq!((shape.slots(), shape.rows_max(), shape.row_bytes()), (256, 256, 14_336));
        assert_eq!(shape.packed_bytes(), 117_440_512);
    }

    #[test]
    fn each_bad_number_is_named_with_the_way_out() {
        type Case = (fn(&mut EpConfig), &'static str);
        let cases: [Case; 13] = [
            (|c| c.world = 1, "world is 1; choose 2 to 8"),
            (|c| c.world = 9, "world is 9; choose 2 to 8"),
            (|c| c.world = 6, "256 experts on 6 ranks: the world must divide the experts; add 2"),
            (|c| c.tokens_max = 0, "tokens_max is 0; choose 1 to 4096"),
            (|c| c.tokens_max = 4097, "tokens_max is 4097; choose 1 to 4096"),
            (|c| c.top_k = 0, "top_k is 0; choose 1 to 8"),
            (|c| c.top_k = 9, "top_k is 9; choose 1 to 8"),
            (|c| (c.experts, c.top_k) = (4, 5), "experts is 4; choose 8 to 8192"),
            (|c| c.hidden = 0, "hidden is 0; choose 8 to 65536"),
            (|c| c.hidden = 7172, "hidden is 7172; rows move in pieces of 16 bytes"),
            (|c| c.rows_max = Some(0), "rows_max is 0; choose 1 to 256"),
            (|c| c.rows_max = Some(257), "rows_max is 257; choose 1 to 256"),
            (|c| c.timeout = Duration::ZERO, "timeout is zero"),
        ];
        for (change, said) in cases {
            let text = refused(change);
            assert!(text.starts_with(said), "{text}");
        }
        let few = |c: &mut EpConfig| (c.world, c.experts, c.top_k) = (2, 4, 5);
        assert_eq!(refused(few), "top_k is 5; choose 1 to 4");
        let fp8 = |c: &mut EpConfig| (c.payload, c.hidden) = (Payload::Fp8, 7176);
        assert!(refused(fp8).contains("a multiple of 128"));
        assert!(refused(|c| c.first_timeout = Duration::ZERO).starts_with("first_timeout"));
    }

    #[test]
    fn another_shape_has_another_hash() {
        let hash = |config: EpConfig| config.shape().unwrap().hash();
        let first = hash(EpConfig::default());
        assert_eq!(
            first,
            hash(EpConfig { timeout: Duration::from_secs(1), ..EpConfig::default() })
        );
        assert_ne!(first, hash(EpConfig { hidden: 7176, ..EpConfig::default() }));
        assert_ne!(first, hash(EpConfig { rows_max: Some(16), ..EpConfig::default() }));
        assert_ne!(first, hash(EpConfig { payload: Payload::Fp8, ..EpConfig::default() }));
    }
}
