//! The fair share of what many take from: nobody can take everything from the others.
//!
//! The rule is that of the dynamic threshold (Choudhury and Hahne, 1998): each may hold up to [`WEIGHT`] times as much
//! as is free. It needs no list of who is active. A holder that is alone is bounded a little below the whole. As others
//! come, less is free, and a holder above its share gets nothing until it has given some back.

/// How many times what is free one may hold. With 8 a holder that is alone has 8/9 of all, two that want everything have
/// 8/17 each, and one ninth to one seventeenth is there for the next to come.
const WEIGHT: usize = 8;

/// Whether one that holds `held` may have one more while `free` are free.
pub(crate) fn may_hold_more(held: usize, free: usize) -> bool {
    may_hold(held.saturating_add(1), free)
}

/// Returns true if one may hold `all` in all, of which `free` were free before the last part.
pub(crate) fn may_hold(all: usize, free: usize) -> bool {
    all <= free.saturating_mul(WEIGHT)
}
