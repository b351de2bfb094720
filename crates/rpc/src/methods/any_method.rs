//! Every method that a plan, a price or a metric can name, whatever answers it.

use std::sync::{PoisonError, RwLock};

use super::{Group, Method, Rules, SubscriptionMethod, TipMethod, rules};

const SEND: &str = "sendTransaction";

/// The methods that change the chain. Nodes have the first two. `sendBundle` belongs to services in front of nodes.
const WRITES: [&str; 3] = [SEND, "requestAirdrop", "sendBundle"];

/// Returns the write method of this name, if there is one.
pub fn write_method(name: &str) -> Option<&'static str> {
    WRITES.into_iter().find(|write| *write == name)
}

/// A method that a plan or a key can allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnyMethod {
    /// A method that slotfront answers through its cache.
    Own(Method),
    /// One of the six methods whose answers never go back.
    Tip(TipMethod),
    /// A subscription over a WebSocket.
    Subscription(SubscriptionMethod),
    /// `simulateTransaction`, which changes nothing.
    Simulate,
    /// `sendTransaction`, which `[send]` may enable.
    Send,
    /// A method that the operator lists.
    Listed(ListedMethod),
}

impl AnyMethod {
    /// The number of methods that there can be.
    pub const COUNT: usize = Self::Listed(ListedMethod(0)).index() + ListedMethod::MAX;

    /// Returns the name in calls, metrics and settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Own(method) => method.as_str(),
            Self::Tip(method) => method.as_str(),
            Self::Subscription(method) => method.as_str(),
            Self::Simulate => "simulateTransaction",
            Self::Send => SEND,
            Self::Listed(method) => method.entry().name,
        }
    }

    /// Returns every method that slotfront knows by itself, in the order of [`AnyMethod::index`].
    pub fn built_in() -> impl Iterator<Item = Self> {
        let own = Method::ALL.into_iter().map(Self::Own).chain(TipMethod::ALL.into_iter().map(Self::Tip));
        own.chain(SubscriptionMethod::ALL.into_iter().map(Self::Subscription))
            .chain([Self::Simulate, Self::Send])
    }

    /// Returns every method, in the order of [`AnyMethod::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        Self::built_in().chain(ListedMethod::all().map(Self::Listed))
    }

    /// Returns the position of the method among all of them, for tables with one element for each.
    pub const fn index(self) -> usize {
        const TIP: usize = Method::ALL.len();
        const SUBSCRIPTION: usize = TIP + TipMethod::ALL.len();
        const SIMULATE: usize = SUBSCRIPTION + SubscriptionMethod::ALL.len();
        match self {
            Self::Own(method) => method.index(),
            Self::Tip(method) => TIP + method.index(),
            Self::Subscription(method) => SUBSCRIPTION + method.index(),
            Self::Simulate => SIMULATE,
            Self::Send => SIMULATE + 1,
            Self::Listed(ListedMethod(at)) => SIMULATE + 2 + at as usize,
        }
    }

    /// Returns the group by which a plan opens the method. `None` for sending, which needs a setting of its own.
    pub fn group(self) -> Option<Group> {
        match self {
            Self::Own(method) => Some(method.group()),
            Self::Tip(_) => Some(Group::Tip),
            Self::Subscription(_) => Some(Group::Subscriptions),
            Self::Simulate => Some(Group::Simulation),
            Self::Send => None,
            Self::Listed(method) => Some(method.entry().group),
        }
    }

    /// Returns the rules of the method.
    pub fn rules(self) -> &'static Rules {
        match self {
            Self::Own(method) => method.rules(),
            Self::Tip(_) | Self::Subscription(_) => &rules::TIP,
            Self::Simulate => &rules::SIMULATION,
            Self::Send => &rules::SEND,
            Self::Listed(method) => method.entry().group.rules_of_listed(),
        }
    }

    /// Returns true if a plan that names no methods allows the method: what a wallet or an explorer reads, and nothing for
    /// which a node works for long.
    pub fn is_usual(self) -> bool {
        self.group().is_some_and(|group| !matches!(group, Group::Scans | Group::Simulation))
    }

    /// Returns the method of this exact name. `None` also for what is no text.
    pub fn from_name(name: impl AsRef<[u8]>) -> Option<Self> {
        Self::all().find(|method| method.as_str().as_bytes() == name.as_ref())
    }
}

impl From<Method> for AnyMethod {
    fn from(method: Method) -> Self {
        Self::Own(method)
    }
}

/// A method that slotfront knows only by the name that an operator has listed. The names stay for the life of the process,
/// so there may be no more than [`ListedMethod::MAX`] of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListedMethod(u8);

#[derive(Debug, Clone, Copy)]
struct Entry {
    name: &'static str,
    group: Group,
}

static LISTED: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

impl ListedMethod {
    /// The maximum number of listed methods.
    pub const MAX: usize = 64;

    /// Returns the method of this name. A name that was listed before keeps its group until the process ends. `None` if
    /// there are too many names.
    pub fn new(name: &str, group: Group) -> Option<Self> {
        let mut entries = LISTED.write().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().position(|entry| entry.name == name).unwrap_or(entries.len());
        if at == entries.len() {
            if at == Self::MAX {
                return None;
            }
            entries.push(Entry { name: name.to_owned().leak(), group });
        }
        u8::try_from(at).ok().map(Self)
    }

    fn all() -> impl Iterator<Item = Self> {
        let count = LISTED.read().unwrap_or_else(PoisonError::into_inner).len();
        (0..u8::MAX).take(count).map(Self)
    }

    fn entry(self) -> Entry {
        LISTED.read().unwrap_or_else(PoisonError::into_inner)[usize::from(self.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_numbered_and_named_once() {
        let listed = ListedMethod::new("getAsset", Group::Provider).unwrap();
        assert_eq!(ListedMethod::new("getAsset", Group::Scans), Some(listed), "one name is one method");
        let mut names: Vec<_> = AnyMethod::all().map(AnyMethod::as_str).collect();
        assert!(AnyMethod::all().enumerate().all(|(at, method)| method.index() == at));
        assert!(names.len() <= AnyMethod::COUNT);
        assert!(AnyMethod::all().all(|method| AnyMethod::from_name(method.as_str()) == Some(method)));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(AnyMethod::Listed(listed).group(), Some(Group::Provider));
    }
}
