#!/usr/bin/env python3
"""Compares the cache hits of slotfront with those of alternatives, and prints a Markdown table of ratios.

    lab/hits.py [--seconds S] [--rounds N] [--connections N] [--accounts N] [--only NAME ...] [--follow] [--against FOLDER]

Every contender has one core to itself, and the load (wrk) has another. The load repeats the same getAccountInfo calls
over keep-alive connections. Each answer has 247 bytes. The contenders take turns, so that a noisy minute affects all of
them alike. Each figure is the median of the rounds, relative to nginx's proxy_cache.

The rows `cache full` have caches of 64 MiB that were filled with twice that size. One call in a hundred requests a new
account, so they evict. A round with less than 97 % hits does not count.

With --follow, only slotfront is measured, with following off and on, in front of a simulated cluster. The load repeats a
call at confirmed for one account that no block writes. Without following, the account is fetched again and again; with it,
the answer gets another slot with each new block, which is what costs hits.

Installs nginx and wrk (Debian packages) if they are missing. All traffic stays on the loopback interface.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True
import full
import lab
from lab import SERVER_CORE

PROXY_CACHE = "nginx proxy_cache"
FLOOR, RETURN, CONSTANT = "a floor: parse, limit, moka, splice (axum)", "nginx return 200", "axum, body read, constant answer"
FULL = ", cache full"
# The token program, which exists on each cluster.
UNWRITTEN = json.dumps({
    "jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": [
        "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
        {"commitment": "confirmed", "encoding": "base64", "dataSlice": {"offset": 0, "length": 32}},
    ],
})
TTL = '[cache.ttl]\naccount = { processed = "1h", confirmed = "1h", finalized = "1h" }'


def nginx_config(folder, caches, return_port):
    """Returns a configuration with one worker and caches keyed on the POST body.

    `caches` has a tuple for each cache: its port, the port of its node, and its size in MiB.
    """
    user = "user root;" if os.geteuid() == 0 else ""
    servers = "".join(f"""
  proxy_cache_path {folder}/cache-{port} keys_zone=calls{port}:64m max_size={size}m inactive=1h;
  upstream node{port} {{ server 127.0.0.1:{node} max_fails=0; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://node{port}; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_cache calls{port}; proxy_cache_methods POST; proxy_cache_key "$request_body"; proxy_cache_valid 200 1h;
    }}
  }}""" for port, node, size in caches)
    return f"""
{user} daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000; client_body_buffer_size 64k;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {servers}
  server {{
    listen 127.0.0.1:{return_port};
    location / {{ default_type application/json; return 200 '{"x" * 246}\\n'; }}
  }}
}}
"""


class Servers(lab.Servers):
    """All contenders, on the core of the servers, and the nodes, on the core of the load."""

    def __init__(self, folder, target, against):
        super().__init__(folder)
        yardsticks = target / "examples" / "yardsticks"
        node, ports = self.node(target), {name: lab.free_port() for name in (PROXY_CACHE, RETURN, CONSTANT, FLOOR)}
        self.urls, self.full = {PROXY_CACHE: f"http://127.0.0.1:{ports[PROXY_CACHE]}/v3/KEY"}, []
        full_port, full_node = lab.free_port(), self.node(target)
        caches = [(ports[PROXY_CACHE], node, 512), (full_port, full_node, full.CAPACITY_MIB)]
        (self.folder / "nginx.conf").write_text(nginx_config(folder, caches, ports[RETURN]))
        self.start(SERVER_CORE, ["nginx", "-p", folder, "-c", self.folder / "nginx.conf"])
        self.full.append(full.Contender(PROXY_CACHE + FULL, full_port, "/v3/KEY", full_node))
        for name, build in lab.builds(target, against).items():
            folder_name = name.replace(" ", "-")
            gateway = lab.Gateway(self, build, folder_name, [node], TTL)
            self.urls[name] = gateway.url
            full_node, cache = self.node(target), f'capacity = "{full.CAPACITY_MIB}MiB"'
            gateway = lab.Gateway(self, build, f"{folder_name}-full", [full_node], TTL, cache)
            self.full.append(full.Contender(name + FULL, gateway.port, f"/v3/{gateway.key}", full_node))
        self.start(SERVER_CORE, [yardsticks, "floor", ports[FLOOR]])
        self.start(SERVER_CORE, [yardsticks, "constant", ports[CONSTANT]])
        for port in (*ports.values(), full_port):
            lab.await_port(port)
        self.urls |= {name: f"http://127.0.0.1:{ports[name]}/v3/KEY" for name in (FLOOR, RETURN, CONSTANT)}


def wanted(options, name):
    return not options.only or any(word in name for word in options.only)


def measure(options, target, folder, servers):
    """Measures every contender and returns the rounds of each, by name."""
    names = [name for name in servers.urls if wanted(options, name)]
    contenders = [each for each in servers.full if wanted(options, each.name)]
    for name in names:
        lab.fill(name, servers.urls[name], options.accounts)
    script = folder / "full.lua"
    script.write_text(full.CALLS)
    for each in contenders:
        each.fill(target)
        each.warm(script, options.connections)
    results, calls = {name: [] for name in names}, [lab.call(i) for i in range(options.accounts)]
    for _ in range(options.rounds):
        for name in names:
            arguments = (options.seconds, options.connections, calls)
            results[name].append(lab.hits(folder, servers.urls[name], *arguments))
        for each in contenders:
            each.ask(script, options.seconds, options.connections)
    for each in contenders:
        if not each.rounds:
            sys.exit(f"{each.name}: no round counts; {each.hit_ratio():.1%} of the calls were hits")
        results[f"{each.name} ({each.hit_ratio():.1%} hits)"] = each.rounds
    return results


def measure_following(options, target, folder):
    """Measures slotfront with following off and on, and returns the rounds of each."""
    with lab.Servers(folder) as servers:
        nodes, urls = servers.cluster(target, 1), {}
        for name, build in lab.builds(target, options.against).items():
            for mode in ("off", "on"):
                folder_name = f"{name.replace(' ', '-')}-{mode}"
                urls[f"{name}, following {mode}"] = lab.Gateway(servers, build, folder_name, nodes, f'[follow]\nmode = "{mode}"').url
        for name, url in urls.items():
            if name.endswith("on"):
                await_carried(url)
        results = {name: [] for name in urls}
        for _ in range(options.rounds):
            for name, url in urls.items():
                results[name].append(lab.hits(folder, url, options.seconds, options.connections, [UNWRITTEN]))
    return results


def await_carried(url):
    for _ in range(600):
        request = urllib.request.Request(url, UNWRITTEN.encode(), {"content-type": "application/json"})
        status = urllib.request.urlopen(request).headers["cache-status"]
        if "carried" in status:
            return
        time.sleep(0.1)
    sys.exit(f"no answer was carried: {status}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--only", nargs="*", help="measure only contenders whose names contain one of these")
    parser.add_argument("--follow", action="store_true", help="measure what following costs, instead of the contenders")
    lab.add_target_options(parser)
    options = parser.parse_args()
    lab.require_two_cores()
    lab.install("wrk", "wrk")
    target = lab.programs(options.target, "yardsticks", "load")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.follow:
            options.accounts = 1
            results = measure_following(options, target, folder)
        else:
            lab.install("nginx", "nginx-light")
            with Servers(folder, target, options.against) as servers:
                results = measure(options, target, folder, servers)
    rates = {name: statistics.median(rate for rate, _ in rounds) for name, rounds in results.items()}
    # Full caches are compared with nginx's full cache, and the others with its other cache.
    bases = {is_full: next((rate for name, rate in rates.items() if name.startswith(PROXY_CACHE) and (FULL in name) == is_full), None) for is_full in (False, True)}
    print(f"{lab.machine()}; {options.connections} connections, {options.accounts} accounts, {options.rounds} rounds of {options.seconds} s\n")
    print("| one server core | hits a second, as a ratio | lowest and highest round | p99 |")
    print("| --- | --- | --- | --- |")
    for name, rounds in results.items():
        base = bases[FULL in name] or next(iter(rates.values()))
        low, high = (pick(rate for rate, _ in rounds) / base for pick in (min, max))
        p99 = statistics.median(p99 for _, p99 in rounds) / 1000
        print(f"| {name} | {rates[name] / base:.2f} | {low:.2f} to {high:.2f} | {p99:.1f} ms |")


if __name__ == "__main__":
    main()
