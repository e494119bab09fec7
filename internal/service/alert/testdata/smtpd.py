"""A mail server that asks for TLS and a password, and writes each mail as a line of JSON.

Usage: smtpd.py CERTIFICATE KEY. The first line is its port. It ends with its input.
"""
import asyncio
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult


class Handler:
    def __init__(self):
        self.busy = 1  # the first mail has to come again

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address == "nobody@example.org":
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        if self.busy:
            self.busy -= 1
            return "451 try again"
        mail = {"from": envelope.mail_from, "to": envelope.rcpt_tos, "tls": session.ssl is not None,
                "text": envelope.content.decode("utf-8")}
        print(json.dumps(mail), flush=True)
        return "250 OK"


def authenticate(server, session, envelope, mechanism, data):
    return AuthResult(success=data.login == b"millrace" and data.password == b"s3cret")


async def main():
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(sys.argv[1], sys.argv[2])
    handler = Handler()

    def smtp():
        return SMTP(handler, tls_context=tls, require_starttls=True, authenticator=authenticate, auth_required=True)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(smtp, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


asyncio.run(main())
