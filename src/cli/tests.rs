//! Tests of the command line, with arguments as a user types them.

#[cfg(feature = "dev")]
mod man_page;

use std::sync::mpsc;

use tokio::sync::oneshot;

use super::*;

/// Runs the command line `args`. Returns its standard output, and on failure the exit code and the message.
fn typed(args: &[&str]) -> (String, Result<(), (u8, String)>) {
    let (out, _, result) = typed_with_notes(args);
    (out, result)
}

/// Runs the command line `args` like [`typed`]. Returns its standard error as well.
fn typed_with_notes(args: &[&str]) -> (String, String, Result<(), (u8, String)>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut world = World { env: BTreeMap::new(), out: &mut out, err: &mut err };
    let result = match Cli::try_parse_from(std::iter::once(&"slotfront").chain(args)) {
        Ok(cli) => run(cli.command, &mut world).map_err(|failure| match failure {
            Failure::Runtime(message) => (1, message),
            Failure::Usage(message) => (2, message),
            Failure::OutputClosed => (0, "unread".to_owned()),
        }),
        Err(error) => Err((u8::try_from(error.exit_code()).unwrap(), error.to_string())),
    };
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), result)
}

#[test]
fn arguments_are_consistent() {
    Cli::command().debug_assert();
}

#[cfg(feature = "dev")]
#[test]
fn help_text_and_examples() {
    let help = Cli::command().render_long_help().to_string();
    insta::assert_snapshot!(help, @r"
    A caching JSON-RPC proxy in front of Solana nodes: repeated reads cost a node only one call.
    It answers read-only methods at POST /v3/<API_KEY>, with keys, plans and limits.

    Usage: slotfront <COMMAND>

    Commands:
      dev          Run a simulated cluster and a gateway in front of it, without setup
      serve        Run the gateway in front of your own nodes
      check        Check a configuration; with --probe also nodes, files and limits
      health       Ask a running gateway for its readiness
      keys         Create, list, change, rotate and revoke API keys
      usage        Print what each key has used, by day and method
      sim          Run a simulated cluster without a gateway; node i, from 0, listens on the port + i
      openrpc      Print the OpenRPC document of all methods
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Try it without any setup:
        slotfront dev

    Run it in front of your own nodes:
        slotfront keys create --file keys.toml --name alice
        SLOTFRONT_UPSTREAMS=node-1=http://10.0.0.1:8899 slotfront serve

    Exit codes: 0 success, 1 failure at run time, 2 wrong usage or configuration.
    ");
    for command in Cli::command().get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Example"), "{help}");
    }
}

#[test]
fn exit_codes_of_help_and_wrong_usage() {
    let version = typed(&["--version"]).1.unwrap_err();
    assert_eq!(
        version,
        (0, format!("slotfront {} ({})\n", env!("CARGO_PKG_VERSION"), env!("SLOTFRONT_REVISION")))
    );
    for (args, code) in [
        (&["--help"][..], 0),
        (&["help", "keys"], 0),
        (&["keys", "create", "--help"], 0),
        (&[], 2),
        (&["deev"], 2),
        (&["keys", "create"], 2),
        (&["serve"], 2),
        (&["check", "--config", "/nowhere/slotfront.toml"], 2),
    ] {
        assert_eq!(typed(args).1.unwrap_err().0, code, "{args:?}");
    }
}

#[test]
fn names_of_old_files_cannot_disturb_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    let keys = |args: &[&str]| typed(&[&["keys"], args, &["--file", file.to_str().unwrap()]].concat());
    keys(&["create", "--name", "alice"]).1.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("alice", "al\\u202E\\u001b[2Jice \u{e9}")).unwrap();
    let (list, _) = keys(&["list"]);
    assert!(list.contains("al\\u{202e}\\u{1b}[2Jice \u{e9} "), "{list:?}");
    assert!(keys(&["revoke", "--name", "al\u{202e}\u{1b}[2Jice \u{e9}"]).1.is_ok(), "the key can be named");
}

#[test]
fn rotation_says_what_stays_valid() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    let keys = |args: &[&str]| {
        let (secret, notes, done) =
            typed_with_notes(&[&["keys"], args, &["--file", file.to_str().unwrap()]].concat());
        done.unwrap();
        (crate::gateway::keys::KeyHash::of(secret.trim()).to_string(), notes)
    };
    let (first, _) = keys(&["create", "--name", "alice"]);
    let (second, notes) = keys(&["rotate", "--name", "alice", "--grace", "1h"]);
    assert!(
        notes.contains(&format!("the secret before this one (sha256 {}...) until 20", &first[..8])),
        "{notes}"
    );
    let (_, notes) = keys(&["rotate", "--name", "alice", "--grace", "48h"]);
    for (which, hash) in [("an earlier secret", &first), ("the secret before this one", &second)] {
        assert!(notes.contains(&format!("{which} (sha256 {}...) until 20", &hash[..8])), "{notes}");
    }
    let (_, notes) = keys(&["rotate", "--name", "alice", "--grace", "0s"]);
    assert!(notes.contains("no earlier secret is valid any more"), "{notes}");
}

#[test]
fn keys_create_rotate_list_revoke() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    let keys = |args: &[&str]| typed(&[&["keys"], args, &["--file", file.to_str().unwrap()]].concat());

    let (key, made) = keys(&["create", "--name", "alice", "--expires", "90d"]);
    assert!(made.is_ok() && key.starts_with("sf_") && key.lines().count() == 1, "{key}");
    let (other, rotated) = keys(&["rotate", "--name", "alice"]);
    assert!(rotated.is_ok() && other != key);
    let (list, _) = keys(&["list"]);
    assert!(list.contains("alice") && list.contains("active, the old secret until"), "{list}");
    assert!(!list.contains(key.trim()) && !list.contains(other.trim()));
    assert!(keys(&["revoke", "--name", "alice"]).1.is_ok());
    assert!(keys(&["list"]).0.contains("revoked"));

    let narrow = ["create", "--name", "shop", "--origin", "https://shop.example", "--address", "10.0.0.0/8"];
    let more = ["--address", "::1", "--method", "getBlock", "--method", "getAccountInfo"];
    assert!(keys(&[&narrow[..], &more].concat()).1.is_ok());
    assert!(keys(&["rotate", "--name", "shop"]).1.is_ok());
    let (list, _) = keys(&["list"]);
    let only = "origin https://shop.example; address 10.0.0.0/8, ::1/128; method getBlock, getAccountInfo";
    assert!(list.lines().any(|line| line.contains("shop") && line.ends_with(only)), "{list}");
    assert!(list.lines().any(|line| line.contains("alice") && line.ends_with("  -")), "{list}");

    for (args, words) in [
        (
            &["create", "--name", "x", "--origin", "shop.example"][..],
            "'shop.example' for '--origin <ORIGIN>': expected",
        ),
        (
            &["create", "--name", "x", "--address", "10.0.0.0/33"],
            "'10.0.0.0/33' for '--address <CIDR>': expected",
        ),
        (
            &["create", "--name", "x", "--method", "getblock"],
            "'getblock' for '--method <METHOD>': expected an exact",
        ),
        (&["revoke", "--name", "bob"], "no key has the id or name \"bob\""),
        (&["rotate", "--name", "alice"], "is revoked; create another"),
        (&["create", "--name", ""], "--name \"\": expected 1 to 64 characters"),
        (&["create", "--name", "a\nb"], "without control characters"),
        (&["create", "--name", "a\u{202e}b"], "characters that hide or reorder text"),
        (&["create", "--name", "x", "--plan", "no plan"], "--plan \"no plan\": expected a plan name"),
        (&["create", "--name", "x", "--expires", "yesterday"], "--expires yesterday: expected"),
        (&["create", "--name", "x", "--expires", "2001-01-01"], "a future date"),
    ] {
        let (code, message) = keys(args).1.unwrap_err();
        assert!(code == 2 && message.contains(words), "{code} {message}");
    }
}

#[test]
fn keys_use_the_key_file_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (config, keys_file) = (dir.path().join("slotfront.toml"), dir.path().join("own/keys.toml"));
    let upstream = "[[upstream]]\nurl = \"http://a.example\"\n";
    std::fs::create_dir(dir.path().join("own")).unwrap();
    std::fs::write(&config, format!("[auth]\nkeys_file = \"own/keys.toml\"\n[plans.gold]\n{upstream}"))
        .unwrap();
    let keys = |args: &[&str]| typed(&[&["keys"], args, &["--config", config.to_str().unwrap()]].concat());
    let (key, made) = keys(&["create", "--name", "alice", "--plan", "gold"]);
    assert!(made.is_ok() && key.starts_with("sf_"), "{made:?}");
    assert!(std::fs::read_to_string(&keys_file).unwrap().contains("name = \"alice\""));
    assert!(keys(&["list"]).0.contains("alice"));
    assert!(keys(&["rotate", "--name", "alice"]).1.is_ok());
    assert!(keys(&["revoke", "--name", "alice"]).1.is_ok());
    assert!(std::fs::read_to_string(&keys_file).unwrap().contains("revoked = "));
    assert!(
        keys(&["create", "--name", "b", "--plan", "silver"]).1.unwrap_err().1.contains("only gold, standard")
    );

    let other = dir.path().join("other.toml");
    assert!(keys(&["create", "--name", "bob", "--file", other.to_str().unwrap()]).1.is_ok());
    assert!(std::fs::read_to_string(&other).unwrap().contains("bob"), "--file counts more");
    std::fs::write(&config, format!("[auth]\nmode = \"open\"\nkeys_file = \"off\"\n{upstream}")).unwrap();
    let (code, message) = keys(&["list"]).1.unwrap_err();
    assert!(code == 2 && message.contains("auth.keys_file is \"off\""), "{message}");
    std::fs::write(&config, "[auth").unwrap();
    assert_eq!(keys(&["list"]).1.unwrap_err().0, 2);
    let revoked = keys(&["revoke", "--name", "bob", "--file", other.to_str().unwrap()]);
    assert_eq!(revoked.1, Ok(()), "a faulty configuration does not keep a key from being revoked");
}

#[test]
fn key_file_of_the_environment_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let (config, keys_file) = (dir.path().join("slotfront.toml"), dir.path().join("keys.toml"));
    std::fs::write(&config, "[[upstream]]\nurl = \"http://a.example\"").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    for (i, (variable, value)) in
        [("SLOTFRONT_CONFIG", text(&config)), ("SLOTFRONT_AUTH__KEYS_FILE", text(&keys_file))]
            .into_iter()
            .enumerate()
    {
        let cli = Cli::try_parse_from(["slotfront", "keys", "create", "--name", "alice"]).unwrap();
        let env = BTreeMap::from([(variable.to_owned(), value)]);
        run(cli.command, &mut World { env, out: &mut Vec::new(), err: &mut Vec::new() }).unwrap();
        assert_eq!(
            std::fs::read_to_string(&keys_file).unwrap().matches("[[key]]").count(),
            i + 1,
            "{variable}"
        );
    }
}

#[test]
fn secrets_are_written_to_new_private_files_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let file = at("keys.toml");
    let keys = |args: &[&str], output: &str| {
        typed_with_notes(&[&["keys"], args, &["--file", &file, "--output", output]].concat())
    };
    for (args, name, word) in [
        (["create", "--name", "alice"], "a.key", "created key-"),
        (["rotate", "--name", "alice"], "b.key", "rotated key-"),
    ] {
        let (out, notes, done) = keys(&args, &at(name));
        assert_eq!((out.as_str(), done), ("", Ok(())));
        assert!(
            notes.starts_with(word) && notes.ends_with(&format!("The secret is in {}\n", at(name))),
            "{notes}"
        );
        assert_eq!(std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777, 0o600);
        let secret = std::fs::read_to_string(at(name)).unwrap();
        let hash = crate::gateway::keys::KeyHash::of(secret.strip_suffix('\n').unwrap()).to_string();
        assert!(std::fs::read_to_string(&file).unwrap().contains(&hash) && !notes.contains("sf_"));
    }
    std::os::unix::fs::symlink(at("target"), at("link.key")).unwrap();
    let before = std::fs::read_to_string(&file).unwrap();
    for (output, words) in [
        (at("a.key"), "a.key: exists already"),
        (at("link.key"), "link.key: exists already"),
        (at("nowhere/c.key"), "c.key: it does not exist, nor does its folder"),
    ] {
        let (out, _, refused) = keys(&["create", "--name", "bob"], &output);
        let (code, message) = refused.unwrap_err();
        assert!(out.is_empty() && code == 2 && message.contains(words), "{code} {message}");
    }
    assert!(!dir.path().join("target").exists());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before, "no key was made for nobody");
    assert!(keys(&["rotate", "--name", "nobody"], &at("d.key")).2.is_err());
    assert!(!dir.path().join("d.key").exists(), "without a secret there is no file");
}

#[test]
fn unreadable_key_file_exits_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let (code, message) = typed(&["keys", "list", "--file", dir.path().to_str().unwrap()]).1.unwrap_err();
    assert_eq!(code, 1, "{message}");
}

#[test]
fn check_prints_summary_warnings_and_problems() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slotfront.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        typed(&["check", "--config", file.to_str().unwrap()])
    };
    let any =
        "[server]\nlisten = \"127.0.0.1:0\"\n[[upstream]]\nname = \"a\"\nurl = \"http://a.example/secret\"\n";
    let (out, result) = check(&format!("{any}[auth]\nmode = \"open\""));
    assert_eq!(result, Ok(()));
    insta::assert_snapshot!(out, @r"
    valid
      listen     127.0.0.1:0 (admin 127.0.0.1:9899)
      upstreams  a
      plans      standard
      callers    everyone, without limits

    warning  pool.genesis_hash is not set, so slotfront believes what all upstreams agree on, and one of another cluster stops every call
             fix: run slotfront check --probe, which shows the line to write
    ");
    let trusting = "[server]\ntrusted_proxies = [\"10.0.0.1\"]\n[[upstream]]\nurl = \"http://a.example\"";
    let same = "\n[[upstream]]\nname = \"b\"\nurl = \"http://a.example\"";
    let (out, result) = check(&(trusting.to_owned() + same));
    assert_eq!(result, Ok(()), "a warning is no failure");
    assert!(out.contains("\nwarning  upstream[1].url is also the URL of upstream upstream-1"), "{out}");
    let keys = dir.path().join("keys.toml");
    for _ in 0..2 {
        typed(&["keys", "create", "--file", keys.to_str().unwrap(), "--name", "alice"]).1.unwrap();
    }
    let (out, result) = check("[[upstream]]\nurl = \"http://a.example\"");
    assert_eq!(result, Ok(()), "a warning is no failure");
    assert!(out.contains("\nwarning  2 keys of ") && out.contains(" have the name \"alice\": key-"), "{out}");
    let (_, result) = check("[[upstream]]\nurl = \"a.example/secret\"");
    let (code, message) = result.unwrap_err();
    assert!(
        code == 2 && message.contains("upstream[0].url = ***") && !message.contains("secret"),
        "{message}"
    );
}

#[test]
fn check_says_that_the_next_port_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slotfront.toml");
    // Until the port before one that is taken is free.
    let out = loop {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:{}\"\nadmin_listen = \"127.0.0.1:0\"\n[[upstream]]\nurl = \"http://a.example\"",
            port - 1
        );
        std::fs::write(&file, text).unwrap();
        let (out, result) = typed(&["check", "--config", file.to_str().unwrap()]);
        assert_eq!(result, Ok(()), "a warning is no failure");
        if out.contains("is taken") {
            break out.replace(&port.to_string(), "NEXT").replace(&(port - 1).to_string(), "PORT");
        }
    };
    let expected = "\nwarning  port NEXT is taken, so client libraries do not find the WebSocket of http://127.0.0.1:PORT, \
                    which is also at ws://127.0.0.1:PORT\n         fix: free the port, or set server.ws_listen";
    assert!(out.contains(expected), "{out}");
}

#[test]
fn check_reports_an_expired_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    std::fs::write(dir.path().join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
    let file = dir.path().join("slotfront.toml");
    let tls = "[server]\ntls = { cert = \"cert.pem\", key = \"key.pem\" }\n";
    std::fs::write(&file, format!("{tls}[[upstream]]\nurl = \"http://127.0.0.1:9\"")).unwrap();
    let check = ["check", "--config", file.to_str().unwrap()];
    let (out, result) = typed(&check);
    assert!(out.contains("\nfault    certificate 1 of server.tls.cert ("), "{out}");
    assert!(out.contains("cert.pem) expired on 2001-01-01 00:00 UTC"), "{out}");
    assert_eq!(result, Ok(()), "a service that checks before its start starts nevertheless");
    let (out, result) = typed(&[&check[..], &["--probe"]].concat());
    assert!(out.contains("expired on 2001-01-01 00:00 UTC"), "{out}");
    assert_eq!(result.unwrap_err().0, 1);
}

#[test]
fn check_prints_the_schema() {
    let (out, result) = typed(&["check", "--schema"]);
    assert_eq!(result, Ok(()));
    let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
    let listen = &schema["properties"]["server"]["properties"]["listen"];
    assert_eq!((&listen["type"], &listen["default"]), (&"string".into(), &"0.0.0.0:8080".into()));
}

#[test]
fn missing_configurations_name_the_options() {
    let heading = "configuration without a file (--config FILE or SLOTFRONT_CONFIG): 1 problem\n";
    let admin = "with --admin ADDR, which needs no configuration";
    for (command, names_admin) in [("serve", false), ("check", false), ("health", true)] {
        let (code, message) = typed(&[command]).1.unwrap_err();
        assert_eq!((code, message.starts_with(heading)), (2, true), "{message}");
        assert_eq!(message.ends_with(admin), names_admin, "{message}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slotfront.toml");
    std::fs::write(&file, "").unwrap();
    let (_, message) = typed(&["health", "--config", file.to_str().unwrap()]).1.unwrap_err();
    assert!(message.contains("slotfront.toml: 1 problem\n") && !message.contains(admin), "{message}");
}

#[test]
fn health_is_told_in_words_and_as_json() {
    use std::io::{BufRead, BufReader};

    let body = "{\"state\":\"degraded\",\"reasons\":[\"no upstream is usable\"]}";
    for (answer, code, words, json) in [
        (format!("HTTP/1.0 200 OK\r\n\r\n{body}"), 0, "degraded\n  no upstream is usable\n", "degraded"),
        ("HTTP/1.0 200 OK\r\n\r\n{\"state\":\"ready\"}".to_owned(), 0, "ready\n", "ready"),
        ("HTTP/1.0 503 No\r\n\r\n{\"state\":\"unready\"}".to_owned(), 1, "unready\n", "unready"),
        (
            "SSH-2.0\r\n".to_owned(),
            1,
            "unreachable\n  ADDR does not answer as slotfront does: \"SSH-2.0\"\n",
            "unreachable",
        ),
        (String::new(), 1, "unreachable\n  ADDR does not answer as slotfront does: \"\"\n", "unreachable"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                (&stream).write_all(answer.as_bytes()).unwrap();
            }
        });
        let (out, result) = typed(&["health", "--admin", &address]);
        assert_eq!(
            (out.replace(&address, "ADDR").as_str(), result.err().map_or(0, |(code, _)| code)),
            (words, code)
        );
        let (out, _) = typed(&["health", "--json", "--admin", &address]);
        let said: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(said["state"], json, "{said}");
    }
}

#[test]
fn unchecked_plans_give_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    let notices = |plan: &str| {
        let args = ["keys", "create", "--file", file.to_str().unwrap(), "--name", "alice", "--plan", plan];
        let cli = Cli::try_parse_from(std::iter::once("slotfront").chain(args)).unwrap();
        let mut err = Vec::new();
        let mut world = World { env: BTreeMap::new(), out: &mut Vec::new(), err: &mut err };
        run(cli.command, &mut world).unwrap();
        String::from_utf8(err).unwrap()
    };
    assert!(notices("gold").starts_with("warning  the configuration must have [plans.gold]"));
    assert!(notices("standard").starts_with("created key-"));
}

#[cfg(feature = "dev")]
#[test]
fn a_simulated_cluster_has_nodes_and_slots() {
    for args in [&["dev", "--nodes", "0"][..], &["sim", "--slot-time", "soon"]] {
        assert_eq!(typed(args).1.unwrap_err().0, 2, "{args:?}");
    }
}

#[cfg(feature = "dev")]
#[test]
fn port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, message) = typed(&["dev", "--listen", &address]).1.unwrap_err();
    assert!(code == 1 && message.contains(&address) && message.contains("--listen"), "{message}");
    let (code, message) = typed(&["sim", "--listen", &address]).1.unwrap_err();
    assert!(code == 1 && message.contains(&address), "{message}");
}

#[test]
fn closed_output_is_not_a_failure() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let cli = Cli::try_parse_from(["slotfront", "openrpc"]).unwrap();
    let mut world = World { env: BTreeMap::new(), out: &mut Closed, err: &mut Vec::new() };
    assert!(matches!(run(cli.command, &mut world), Err(Failure::OutputClosed)));
}

#[test]
fn openrpc_and_completions_are_printed() {
    let (document, result) = typed(&["openrpc"]);
    assert!(result.is_ok() && serde_json::from_str::<serde_json::Value>(&document).is_ok());
    for shell in ["bash", "zsh", "fish"] {
        assert!(typed(&["completions", shell]).0.contains("slotfront"), "{shell}");
    }
}

#[test]
fn a_blocked_thread_does_not_hold_up_the_end() {
    let (done, ended) = mpsc::channel();
    let (release, blocked) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let work = async move {
            let (start, running) = oneshot::channel();
            tokio::task::spawn_blocking(move || {
                let _ = start.send(());
                let _ = blocked.recv();
            });
            running.await.map_err(Failure::runtime)
        };
        done.send(in_runtime(work).is_ok())
    });
    assert_eq!(ended.recv_timeout(Duration::from_mins(1)), Ok(true));
    drop(release);
}

#[test]
fn usage_of_several_replicas_is_their_sum() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("1.json"), dir.path().join("2.json"));
    let lines = [
        r#"{"day":"2026-10-31","key":"key-1","name":"al","used":[9.0,9.0],"calls":{"getBlock":[2,9.0]}}"#,
        r#"{"day":"2026-11-01","key":"key-1","name":"=cmd|' /C calc'!A0","used":[4.5,4.5],"calls":{"getBlock":[3,4.5]}}"#,
        r#"{"day":"2026-11-01","key":"key-2","name":"a,\n\"b\"","used":[1.0,1.0],"calls":{"looks":[0,0.001]}}"#,
    ];
    std::fs::write(&one, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    std::fs::write(&other, format!("{}\n{}", lines[1], &lines[2][..70])).unwrap();
    let files = [one.to_str().unwrap(), other.to_str().unwrap()];
    let usage = |args: &[&str]| typed_with_notes(&[&["usage"], args, &files].concat());
    let (csv, notes, _) = usage(&["--month", "2026-11", "--csv"]);
    insta::assert_snapshot!(csv, @r#"
    day,key,name,method,calls,units
    2026-11-01,key-1,"'=cmd|' /C calc'!A0",getBlock,6,9
    2026-11-01,key-2,"a, ""b""",looks,0,0.001
    "#);
    assert!(
        notes.ends_with("2.json: line 2 is the last one and was not written to its end; it does not count\n"),
        "{notes}"
    );
    let json: serde_json::Value = serde_json::from_str(&usage(&["--json"]).0).unwrap();
    assert_eq!(
        json[0],
        serde_json::json!({"day": "2026-10-31", "key": "key-1", "name": "=cmd|' /C calc'!A0", "method": "getBlock", "calls": 2, "units": 9.0})
    );
    let table = usage(&[]).0;
    assert!(table.contains("2026-11  key-1  =cmd|' /C calc'!A0  6      9\n"), "{table}");
    for (args, code, said) in [
        (&["usage"][..], 2, "<FILE>..."),
        (&["usage", "--month", "november", files[0]], 2, "expected a month such as 2026-11"),
        (&["usage", "/nowhere/usage.json"], 1, "/nowhere/usage.json: does not exist"),
    ] {
        let (found, message) = typed(args).1.unwrap_err();
        assert!(found == code && message.contains(said), "{message}");
    }
}
