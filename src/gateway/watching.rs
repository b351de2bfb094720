//! What a caller with a WebSocket may open, and what watching costs: notifications, and looks at accounts and signatures.

use std::sync::Arc;

use super::looks::LOOKS_OF_A_UNIT;
use super::plan;
use super::principal::{CALLS_END, Principal, to_f64};
use crate::cache::Charge;
use crate::error::Error;
use crate::fair::Held;
use crate::methods::{AnyMethod, Commitment, Subscription};
use crate::telemetry::LimitReason;

impl Principal {
    /// Takes one of the WebSockets that the plan allows. Dropping the result gives it back.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the plan allows none, [`Error::Limited`] if the key has as many as it may.
    pub fn hold_connection(&self) -> Result<Held, Error> {
        let Some(limits) = &self.limits else { return Ok(Held::uncounted()) };
        match limits.terms.plan.connections {
            0 => Err(Error::Forbidden("a WebSocket".to_owned())),
            limit => limits.holds.connections.hold_one_of(limit).ok_or_else(|| {
                self.limited(LimitReason::Connections, format!("{limit} open WebSockets"), CALLS_END)
            }),
        }
    }

    /// Takes one of the subscriptions that the plan allows. `None` if the key has as many as it may.
    pub fn hold_subscription(&self) -> Option<Held> {
        let Some(limits) = &self.limits else { return Some(Held::uncounted()) };
        limits.holds.subscriptions.hold_one_of(limits.terms.plan.subscriptions)
    }

    /// Checks that the plan and the key allow a subscription now, and reserves its price.
    ///
    /// # Errors
    /// As for [`Self::allows_subscription`], and [`Error::Limited`] if too little is left of the method's own rate or of a
    /// quota.
    pub fn admit_subscription(self: &Arc<Self>, to: &Subscription) -> Result<Charge, Error> {
        self.allows_subscription(to)?;
        self.charge(plan::price_of(self.units(), AnyMethod::Subscription(to.method())))
    }

    pub fn charge_notification(&self) {
        let price = self.units().notification;
        if price > 0 {
            self.book("notification", to_f64(price));
        }
    }

    /// Adds the price of a look at a watched account of this length. The first looks of a slot and their bytes are free.
    pub fn charge_look(&self, at: Commitment, round: u64, bytes: usize) {
        let (price, Some(limits)) = (self.units().looks, &self.limits) else { return };
        if price > 0 {
            let mut looks = limits.holds.looks.lock();
            self.book("looks", to_f64(price) * looks[at.index()].units_of(round, bytes));
        }
    }

    /// Adds the price of this number of looks at signatures that are waited for although they will hardly land.
    pub fn charge_lasting(&self, looks: f64) {
        let price = self.units().looks;
        if price > 0 && looks > 0.0 {
            self.book("looks", to_f64(price) * looks / LOOKS_OF_A_UNIT);
        }
    }
}
