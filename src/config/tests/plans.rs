//! What a plan says of single methods.

use super::*;

#[test]
fn prices_and_rates_of_single_methods_are_checked() {
    let with = |text: &str| {
        format!(
            "{ONE}[methods.getAsset]\n[plans.free]\nmethods = [\"core\", \"scans\", \"getAsset\"]\n{text}"
        )
    };
    let rule = "expected a number of calls, at least one, a second, minute or hour";
    let rate = format!("plans.free.rate.getBalance: {rule}");
    for (text, expected) in [
        ("units.getProgramAccounts = 50\nunits.getAsset = 0\nrate.getAsset = \"100 / h\"", ""),
        ("units.getProgramAccount = 50", "plans.free.units.getProgramAccount: is not a setting"),
        ("units.default = 50", "plans.free.units.default: is not a setting"),
        ("units.getBalance = -1", "plans.free.units.getBalance: expected a whole number"),
        ("units.getBalance = 1000001", "plans.free.units.getBalance: expected a value from 0 to 1000000"),
        ("units = 5", "plans.free.units: expected a table"),
        ("rate = \"1/s\"", "plans.free.rate: expected a table"),
        ("rate.getBalance = \"0/min\"", &rate),
        ("rate.getBalance = \"1/day\"", &rate),
        ("rate.getBalance = \"-1/s\"", &rate),
        ("rate.getBalance = 5", &rate),
        ("rate.getBalances = \"5/s\"", "plans.free.rate.getBalances: is not a setting"),
        ("scan_filter = \"yes\"", "plans.free.scan_filter: expected true or false"),
        ("deny_programs = [\"token\"]", "plans.free.deny_programs: element 0: expected an address in base58"),
        (
            "daily_units = 100\nunits.getBalance = 150",
            "plans.free.daily_units: is less than the price of one getBalance (150 units)",
        ),
        (
            "daily_units = 50\nunits.getProgramAccounts = 50\nunits.getSupply = 50\nunits.getLargestAccounts = 0\nunits.getTokenLargestAccounts = 1",
            "",
        ),
    ] {
        assert_eq!(faults(&with(text), &[]).join("\n"), expected, "{text}");
    }
    let plan = &valid(&with("rate.getBalance = \"7/min\""), &[]).plans["free"];
    let rate = plan.rate[&AnyMethod::Own(Method::GetBalance)];
    assert_eq!((rate.calls, rate.period, rate.to_string()), (7, Duration::from_mins(1), "7/min".to_owned()));
    let env =
        [("SLOTFRONT_PLANS__FREE__RATE__GETBALANCE", "2/s"), ("SLOTFRONT_PLANS__FREE__UNITS__GETBLOCK", "3")];
    let plan = &valid(ONE, &env).plans["free"];
    assert_eq!(plan.rate.values().map(ToString::to_string).collect::<Vec<_>>(), ["2/s"]);
    assert_eq!(plan.units.values().collect::<Vec<_>>(), [&3]);
}

#[test]
fn a_price_or_rate_without_its_method_is_a_warning() {
    let text = format!(
        "{ONE}[plans.free]\nunits = {{ getProgramAccounts = 50, getBlock = 3 }}\nrate = {{ simulateTransaction = \"1/s\" }}"
    );
    let warnings = valid(&text, &[]).warnings;
    let said: Vec<_> = warnings.iter().map(|warning| (&*warning.path, &*warning.fix)).collect();
    assert_eq!(
        said,
        [
            (
                "plans.free.units.getProgramAccounts",
                "add the method to plans.free.methods, or remove plans.free.units.getProgramAccounts"
            ),
            (
                "plans.free.rate.simulateTransaction",
                "add the method to plans.free.methods, or remove plans.free.rate.simulateTransaction"
            ),
        ]
    );
}
