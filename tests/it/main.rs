//! Behaviours through the real door.

mod dashboards;
