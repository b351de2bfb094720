"""tests/real/store_sites finds every place of a source that stores an account."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parent / "store_sites"

SOURCE = {
    "bank.rs": '''
        // self.store_account(&comment, &account);
        const TEXT: &str = "self.store_account(&text, &account)";
        mod builtins;
        #[cfg(test)]
        mod checks;
        impl<F: Fn(u64) -> u64> Bank<F> {
            fn update_sysvar_account<G>(&self, pubkey: &Pubkey, updater: G) where G: Fn(u64) -> u64 {
                self.store_account_and_update_capitalization(pubkey, &updater(1));
            }
            fn new_kind(&self, slot: Slot, owner: &Pubkey, vote: &Pubkey) {
                self.store_accounts_without_cache((
                    slot,
                    &[(vote, account)][..],
                ));
                self.pay(9, &vote);
            }
            fn pay(&self, lamports: u64, receiver: &Pubkey) {
                let c = '"';
                self.store_account(receiver, &account);
            }
            #[cfg(feature = "dev-context-only-utils")]
            pub fn deposit(&self, pubkey: &Pubkey) { self.store_account(pubkey, &account); }
            fn last(&self, #[cfg(feature = "dev-context-only-utils")] id: Option<Pubkey>) { self.store_account(&LAST, &a); }
        }
        #[cfg(test)]
        mod tests {
            fn test() { bank.store_account(&of_test, &account); }
        }
    ''',
    "checks.rs": "fn f() { bank.store_account(&of_checks, &account); }",
    "loader.rs": '#![cfg(feature = "dev-context-only-utils")]\nfn f() { bank.store_account(&of_loader, &account); }',
    "builtins/migration.rs": "fn migrate(bank: &Bank) { bank.store_account(&source.buffer_address, &account); }",
}


class StoreSitesTest(unittest.TestCase):
    def test_new_places_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in SOURCE.items():
                path = pathlib.Path(folder, "src", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run([sys.executable, PROGRAM, folder], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(
            [line.strip().removeprefix("NO RULE: ") for line in done.stdout.splitlines()[1:]],
            [
                "last: store_account(&LAST) (bank.rs)",
                "migrate: store_account(&source.buffer_address) (builtins/migration.rs)",
                "new_kind: pay(&vote) (bank.rs)",
                "new_kind: store_accounts_without_cache(( slot, &[(vote, account)][..], )) (bank.rs)",
                "pay: store_account(receiver) (bank.rs)",
            ],
        )


if __name__ == "__main__":
    unittest.main()
