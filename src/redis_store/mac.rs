//! The signature of values in the store.

use ring::hmac;

use crate::config::Secret;

/// The length of a signature, in bytes.
pub const MAC_BYTES: usize = 32;

/// Signs with the secret of the store. Without a secret, a signature is a checksum: it finds accidents, not malice.
pub struct StoreMac(hmac::Key);

impl StoreMac {
    /// Creates the signer for `secret`. All gateways with the same secret sign alike.
    pub fn new(secret: Option<&Secret>) -> Self {
        let secret = secret.map_or("", Secret::expose);
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    pub fn sign(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(context.sign().as_ref());
        mac
    }
}
