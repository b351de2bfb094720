"""TCP balancers that name the client in a PROXY header, in front of a gateway: nginx writes version 1, HAProxy version 2."""

import http.client
import json
import tempfile
import unittest
from pathlib import Path

from gateway import PATIENCE_S, Nodes, Program, Serve, eventually, free_port, keys

NGINX = """load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off; pid {folder}/pid; error_log stderr;
events {{}}
stream {{ server {{ listen 127.0.0.1:{port}; proxy_pass {gateway}; proxy_protocol on; }} }}
"""
HAPROXY = """defaults
    mode tcp
    timeout connect 30s
    timeout client 30s
    timeout server 30s
listen slotfront
    bind 127.0.0.1:{port}
    server gateway {gateway} send-proxy-v2
"""


class TcpBalancers(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        # The first key works only from the balancer's own address, the second only from the client's.
        file = self.folder / "keys.toml"
        self.keys = [keys(file, "create", "--name", address, "--address", address) for address in ("127.0.0.1", "127.0.0.2")]
        config = self.folder / "slotfront.toml"
        config.write_text('[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
                          'proxy_protocol = true\ntrusted_proxies = ["127.0.0.1/32"]\n'
                          f'[[upstream]]\nurl = "{self.enterContext(Nodes()).url}"\n')
        self.gateway = self.enterContext(Serve(config)).ready()

    def ask(self, port, key):
        """Returns the status of a call from 127.0.0.2, or None while the balancer does not listen."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=("127.0.0.2", 0))
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"})
        try:
            connection.request("POST", f"/v3/{key}", body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        except ConnectionRefusedError:
            return None
        finally:
            connection.close()

    def check(self, text, program, *arguments):
        port = free_port()
        config = self.folder / "balancer.conf"
        config.write_text(text.format(folder=self.folder, port=port, gateway=self.gateway.public))
        with Program(*arguments, config, program=program) as balancer:
            first = lambda: self.ask(port, self.keys[0]) if balancer.is_running() else self.fail(balancer.printed())
            self.assertEqual(eventually(first, balancer.printed), 403)
            self.assertEqual(self.ask(port, self.keys[1]), 200)

    def test_nginx_names_the_client_in_version_1(self):
        self.check(NGINX, "/usr/sbin/nginx", "-c")

    def test_haproxy_names_the_client_in_version_2(self):
        self.check(HAPROXY, "/usr/sbin/haproxy", "-f")


if __name__ == "__main__":
    unittest.main()
