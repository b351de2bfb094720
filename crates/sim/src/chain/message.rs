//! Transaction messages, legacy and version 0: the compilation of instructions, and the wire form.

use std::collections::BTreeMap;

use slotfront_rpc::methods::Pubkey;

use super::instruction::TypedInstruction;

/// An instruction of a message, with indexes into the account keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub(crate) program: u8,
    pub(crate) accounts: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// The accounts that a version 0 message takes from one lookup table. `writable` and `readonly` hold positions in the
/// table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddressTableLookup {
    pub(crate) table: Pubkey,
    pub(crate) writable: Vec<u8>,
    pub(crate) readonly: Vec<u8>,
}

/// The accounts from lookup tables. The indexes of instructions count the writable accounts before the read-only ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) writable: Vec<Pubkey>,
    pub(crate) readonly: Vec<Pubkey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// True for a version 0 message, false for a legacy one.
    pub(crate) v0: bool,
    /// The numbers of signers, of read-only signers, and of read-only accounts that do not sign.
    pub(crate) header: [u8; 3],
    pub(crate) keys: Vec<Pubkey>,
    pub(crate) blockhash: [u8; 32],
    pub(crate) instructions: Vec<Compiled>,
    pub(crate) lookups: Vec<AddressTableLookup>,
}

/// A lookup table for a version 0 message: the address of the table, and the addresses that the table lists.
pub(crate) type Table<'a> = (&'a Pubkey, &'a [Pubkey]);

impl Message {
    /// Compiles `instructions`, paid for by `payer`, as clients do. The order of accounts is the payer, writable
    /// signers, read-only signers, writable others and read-only others. Each group is sorted by address.
    ///
    /// With a `table`, the message has version 0. Accounts that the table lists are looked up in it, unless they
    /// sign or are called as programs.
    pub(crate) fn compile(
        payer: Pubkey,
        instructions: &[TypedInstruction],
        table: Option<Table<'_>>,
        blockhash: [u8; 32],
    ) -> (Self, Loaded) {
        let mut roles: BTreeMap<Pubkey, (bool, bool)> = BTreeMap::new();
        for account in instructions.iter().flat_map(TypedInstruction::accounts) {
            let role = roles.entry(account.key).or_default();
            *role = (role.0 | account.signer, role.1 | account.writable);
        }
        let programs: Vec<Pubkey> = instructions.iter().map(TypedInstruction::program).collect();
        for program in &programs {
            roles.entry(*program).or_default();
        }
        roles.remove(&payer);

        let mut loaded = Loaded::default();
        let mut lookups = Vec::new();
        if let Some((key, addresses)) = table {
            let mut lookup = AddressTableLookup { table: *key, writable: vec![], readonly: vec![] };
            for (index, address) in (0..=u8::MAX).zip(addresses) {
                match roles.get(address) {
                    Some((false, writable)) if !programs.contains(address) => {
                        let (indexes, keys) = if *writable {
                            (&mut lookup.writable, &mut loaded.writable)
                        } else {
                            (&mut lookup.readonly, &mut loaded.readonly)
                        };
                        indexes.push(index);
                        keys.push(*address);
                        roles.remove(address);
                    }
                    _ => {}
                }
            }
            // An empty lookup would make the message invalid.
            if !(lookup.writable.is_empty() && lookup.readonly.is_empty()) {
                lookups.push(lookup);
            }
        }

        let group = |signer, writable| {
            roles.iter().filter(move |(_, role)| **role == (signer, writable)).map(|(key, _)| *key)
        };
        let count = |signer, writable| u8::try_from(group(signer, writable).count()).unwrap_or(u8::MAX);
        let header = [1 + count(true, true) + count(true, false), count(true, false), count(false, false)];
        let keys: Vec<Pubkey> = std::iter::once(payer)
            .chain(
                [(true, true), (true, false), (false, true), (false, false)]
                    .into_iter()
                    .flat_map(|(s, w)| group(s, w)),
            )
            .collect();

        let all: Vec<Pubkey> = keys.iter().chain(&loaded.writable).chain(&loaded.readonly).copied().collect();
        let index = |key: &Pubkey| {
            let at = all.iter().position(|other| other == key);
            at.and_then(|at| u8::try_from(at).ok())
                .expect("every account was collected above, and they are few")
        };
        let instructions = instructions
            .iter()
            .map(|instruction| Compiled {
                program: index(&instruction.program()),
                accounts: instruction.accounts().iter().map(|account| index(&account.key)).collect(),
                data: instruction.data(),
            })
            .collect();
        (Self { v0: table.is_some(), header, keys, blockhash, instructions, lookups }, loaded)
    }

    /// Returns the number of required signatures.
    pub(crate) fn signatures(&self) -> u8 {
        self.header[0]
    }

    pub(crate) fn signers(&self) -> &[Pubkey] {
        &self.keys[..usize::from(self.header[0])]
    }

    /// Returns the called program and the data of each instruction.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (Pubkey, &[u8])> + Clone {
        self.instructions.iter().map(|i| (self.keys[usize::from(i.program)], &i.data[..]))
    }

    /// Returns true if the account key at `index` signs. Indexes of looked-up keys are not valid here.
    pub(crate) fn is_signer(&self, index: usize) -> bool {
        index < usize::from(self.header[0])
    }

    /// Returns true if the header makes the account key at `index` writable. Indexes of looked-up keys are not valid
    /// here.
    pub(crate) fn is_writable(&self, index: usize) -> bool {
        let [signers, readonly_signers, readonly_others] = self.header.map(usize::from);
        if index < signers {
            index < signers - readonly_signers
        } else {
            index < self.keys.len() - readonly_others
        }
    }

    /// Returns the wire form of the message: the bytes that signers sign.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        if self.v0 {
            out.push(0x80);
        }
        out.extend(self.header);
        put_len(&mut out, self.keys.len());
        out.extend(self.keys.iter().flat_map(|key| key.0));
        out.extend(self.blockhash);
        put_len(&mut out, self.instructions.len());
        for instruction in &self.instructions {
            out.push(instruction.program);
            put_bytes(&mut out, &instruction.accounts);
            put_bytes(&mut out, &instruction.data);
        }
        if self.v0 {
            put_len(&mut out, self.lookups.len());
            for lookup in &self.lookups {
                out.extend(lookup.table.0);
                put_bytes(&mut out, &lookup.writable);
                put_bytes(&mut out, &lookup.readonly);
            }
        }
        out
    }
}

/// Returns the wire form of a transaction: signatures, then the message.
pub(crate) fn encode_transaction(signatures: &[[u8; 64]], message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    put_len(&mut out, signatures.len());
    out.extend(signatures.iter().flatten());
    out.extend(message.encode());
    out
}

/// Writes a length in Solana's short form: seven bits per byte, at most 16 bits.
fn put_len(out: &mut Vec<u8>, len: usize) {
    let mut rest = len;
    while rest >= 0x80 {
        out.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    out.push(rest.to_le_bytes()[0]);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend(bytes);
}
