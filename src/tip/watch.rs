//! The signatures whose end somebody waits for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

use crate::methods::{Commitment, Signature, Slot};

/// The end of a signature: its transaction is at the commitment that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    /// The slot at which this is known, which is never below an earlier one.
    pub slot: Slot,
    /// The error of the transaction as JSON text, or `null`.
    pub err: Bytes,
}

/// One waiting for the end of a signature. Dropping it ends the waiting.
#[derive(Debug)]
pub struct Watch {
    key: WatchKey,
    number: u64,
    end: watch::Receiver<Option<Landed>>,
    watches: Arc<Watches>,
}

type WatchKey = (Signature, Commitment);

/// All signatures that are watched. There are as many as subscriptions, whose number is bounded.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<WatchTable>);

#[derive(Debug, Default)]
struct WatchTable {
    watched: HashMap<WatchKey, Watched>,
    last_number: u64,
}

/// One signature that is watched at one commitment, by any number of callers.
#[derive(Debug)]
struct Watched {
    /// A number that no other entry has. Later entries have higher ones.
    number: u64,
    watchers: usize,
    end: watch::Sender<Option<Landed>>,
}

impl Watch {
    /// Waits until the signature is at the commitment. It is cancel safe.
    pub async fn landed(&mut self) -> Landed {
        let landed = self.end.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone());
        match landed {
            Some(landed) => landed,
            // The sender lives as long as the watch, or has sent the end.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut table = self.watches.lock();
        if let Some(watched) =
            table.watched.get_mut(&self.key).filter(|watched| watched.number == self.number)
        {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                table.watched.remove(&self.key);
            }
        }
    }
}

impl Watches {
    pub(super) fn add(self: &Arc<Self>, signature: Signature, commitment: Commitment) -> Watch {
        let key = (signature, commitment);
        let mut table = self.lock();
        let number = table.last_number + 1;
        let watched = table.watched.entry(key).or_insert_with(|| Watched {
            number,
            watchers: 0,
            end: watch::Sender::new(None),
        });
        watched.watchers += 1;
        let (own, end) = (watched.number, watched.end.subscribe());
        table.last_number = number;
        Watch { key, number: own, end, watches: Arc::clone(self) }
    }

    fn lock(&self) -> MutexGuard<'_, WatchTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
