//! Behaviours through the real door.
