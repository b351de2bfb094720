//! Fair shares of a limited supply, such as permits: no single holder can take everything. A holder is an
//! API key, a client address or a caller.
//!
//! The rule is that of the dynamic threshold (Choudhury and Hahne, 1998). Each holder may have up to
//! [`WEIGHT`] times as much as is free. No list of active holders is needed. A single holder gets slightly
//! less than the whole. With more holders less is free, and a holder above its share gets nothing until
//! enough is given back.

/// The maximum number of units that one key or caller may have, as a multiple of the free units. With 8, a
/// single caller gets 8/9 of all, and two that want everything get 8/17 each. The other 1/9 or 1/17 stays
/// free for the next caller.
const WEIGHT: usize = 8;

/// Returns true if a key or caller that has `held` units may take one more while `free` units are free.
pub(crate) fn may_hold_more(held: usize, free: usize) -> bool {
    may_hold(held.saturating_add(1), free)
}

/// Returns true if a key or caller may have `all` units in total. `free` is the number of free units just
/// before the last of these units is taken.
pub(crate) fn may_hold(all: usize, free: usize) -> bool {
    all <= free.saturating_mul(WEIGHT)
}
