//! The key pairs of the simulated cluster. Whoever signs a simulated transaction signs it with a real ed25519 key.

use std::collections::BTreeMap;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use slotfront_rpc::methods::Pubkey;

use crate::draw::Draw;

/// The key pairs of every account that signs, by address. They are derived once, because that takes as long as a
/// signature.
#[derive(Debug, Default)]
pub(crate) struct Keyring(BTreeMap<Pubkey, Ed25519KeyPair>);

impl Keyring {
    /// Adds the key pair with the name `label` and the number `n`, and returns its address.
    pub(crate) fn add(&mut self, seed: u64, label: &str, n: u64) -> Pubkey {
        let pair = Ed25519KeyPair::from_seed_unchecked(&secret(seed, label, n))
            .expect("32 bytes are always an ed25519 seed");
        let address = Pubkey(public(&pair));
        self.0.insert(address, pair);
        address
    }

    /// Returns the signature of the owner of `address`, who must be in the keyring: each payer and each authority of
    /// the chain's own transactions is.
    pub(crate) fn sign(&self, address: &Pubkey, message: &[u8]) -> [u8; 64] {
        let pair = self.0.get(address).expect("only owners in the keyring sign the chain's own transactions");
        pair.sign(message).as_ref().try_into().expect("an ed25519 signature has 64 bytes")
    }
}

fn secret(seed: u64, label: &str, n: u64) -> [u8; 32] {
    Draw::new(seed, label, n).bytes()
}

fn public(pair: &Ed25519KeyPair) -> [u8; 32] {
    pair.public_key().as_ref().try_into().expect("an ed25519 public key has 32 bytes")
}

/// Returns a key pair in the form of client libraries: the 32 bytes of the seed, then the 32 bytes of the address.
pub(crate) fn secret_key(seed: u64, label: &str, n: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..32].copy_from_slice(&secret(seed, label, n));
    bytes[32..].copy_from_slice(&Keyring::default().add(seed, label, n).0);
    bytes
}

/// Returns true if the owner of `address` made this signature of `message`.
pub(crate) fn verifies(address: &Pubkey, message: &[u8], signature: &[u8; 64]) -> bool {
    UnparsedPublicKey::new(&ED25519, address.0).verify(message, signature).is_ok()
}
