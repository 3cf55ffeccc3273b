#!/usr/bin/env python3
"""Requests as bytes, well formed and not, and what each is answered: one table for every HTTP library.

    malformed.py PORT       tries all against the server on that port of 127.0.0.1; ends with N passed, N failed

Each row is followed on its connection by a second request. Where the first is refused for its framing, the second must
not be answered: one response head, in JSON, and the end of the connection. Needs nothing but Python's own library, so
that it also runs in a bare tree with another version of libmicrohttpd (deploy/fresh-machine-test).
"""
import json
import re
import socket
import sys

BODY = json.dumps({"prompt": "x", "max_tokens": 1, "temperature": 0}).encode()
LINE = b"POST /v1/completions HTTP/1.1\r\n"
HEAD = LINE + b"Host: localhost\r\nContent-Type: application/json\r\n"
SECOND = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def get(line, *headers):
    return line + b"\r\n" + b"".join(h + b"\r\n" for h in (b"Host: localhost", *headers)) + b"\r\n"


def post(*headers):
    """A body of the right length behind headers that may say otherwise."""
    return HEAD + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + BODY


def chunks(data):
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + data


SIZE = b"%x" % len(BODY)
GOOD = SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
LENGTH = b"Content-Length: %d" % len(BODY)
SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

# name: bytes, the statuses of all answers. 200 at the end is SECOND's.
CASES = {
    # request lines
    "line with a bare line feed": (b"GET /health HTTP/1.1\nHost: localhost\r\n\r\n", [400]),
    "head with bare line feeds": (b"GET /health HTTP/1.1\nHost: localhost\n\n", [400]),
    "two blanks before the target": (get(b"GET  /health HTTP/1.1"), [400]),
    "two blanks behind the target": (get(b"GET /health  HTTP/1.1"), [400]),
    "a blank at the line's end": (get(b"GET /health HTTP/1.1 "), [400]),
    "a blank before the method": (get(b" GET /health HTTP/1.1"), [400]),
    "a tab for a blank": (get(b"GET\t/health HTTP/1.1"), [400]),
    "a blank in the target": (get(b"GET /he alth HTTP/1.1"), [400]),
    "NUL in the target": (get(b"GET /health\0x HTTP/1.1"), [400]),
    "high bytes in the target": (get(b"GET /\xff\xfe HTTP/1.1"), [400]),
    "no version": (get(b"GET /health"), [400]),
    "a method that is no token": (get(b"G@T /health HTTP/1.1"), [400]),
    "HTTP/2.0": (get(b"GET /health HTTP/2.0"), [505]),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400]),
    "an empty line before the request": (b"\r\n" + get(b"GET /health HTTP/1.1"), [200, 200]),
    "escaped NUL": (get(b"GET /health%00 HTTP/1.1"), [404, 200]),
    "escaped path": (get(b"GET /health%2e HTTP/1.1"), [404, 200]),
    "small letters": (get(b"get /health HTTP/1.1"), [405, 200]),
    "unknown method": (get(b"FROB /health HTTP/1.1"), [405, 200]),
    "absolute target": (get(b"GET http://localhost/health HTTP/1.1"), [200, 200]),
    # headers
    "two hosts": (get(b"GET /health HTTP/1.1", b"Host: localhost"), [400]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    "folded": (get(b"GET /health HTTP/1.1", b"X-A: b", b" c: d"), [400]),
    "folded with a tab": (get(b"GET /health HTTP/1.1", b"X-A: b", b"\tc"), [400]),
    "folded coding": (HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + GOOD, [400]),
    "a folded first line": (b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n", [400]),
    "bare line feed": (get(b"GET /health HTTP/1.1", b"X-A: b\nX-B: c"), [400]),
    "bare line feed, then a length": (post(b"X-A: b\n" + LENGTH), [400]),
    "bare carriage return": (get(b"GET /health HTTP/1.1", b"X-A: b\rX-B: c"), [400]),
    "NUL in a value": (get(b"GET /health HTTP/1.1", b"X-A: b\0c"), [400]),
    "two NULs and a header": (get(b"GET /health HTTP/1.1", b"X-A: b\0\0X-B: c"), [400]),
    "two NULs and half a header": (get(b"GET /health HTTP/1.1", b"X-A: b\0\0X-B\0c"), [400]),
    "NUL at a value's end": (get(b"GET /health HTTP/1.1", b"X-A: b\0"), [400]),
    "NUL in a name": (get(b"GET /health HTTP/1.1", b"X\0A: b"), [400]),
    "control character": (get(b"GET /health HTTP/1.1", b"X-A: b\x01c"), [400]),
    "no colon": (get(b"GET /health HTTP/1.1", b"X-A"), [400]),
    "empty name": (get(b"GET /health HTTP/1.1", b": b"), [400]),
    "bad name": (get(b"GET /health HTTP/1.1", b"X(A): b"), [400]),
    "blank before the colon": (post(LENGTH.replace(b":", b" :")), [400]),
    "tab before the colon": (post(LENGTH.replace(b":", b"\t:")), [400]),
    "tabs around a value": (post(LENGTH.replace(b": ", b":\t") + b"\t"), [200, 200]),
    # how long the body is
    "length and coding": (HEAD + LENGTH + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + GOOD, [400]),
    "coding and length": (HEAD + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n\r\n" + GOOD, [400]),
    "two lengths": (post(LENGTH, b"Content-Length: 6"), [400]),
    "two equal lengths": (post(LENGTH, LENGTH), [400]),
    "two codings": (HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + GOOD, [400]),
    "length with a blank": (post(LENGTH + b" "), [200, 200]),
    "length with a sign": (post(LENGTH.replace(b": ", b": +")), [400]),
    "negative length": (post(b"Content-Length: -5"), [400]),
    "list of lengths": (post(LENGTH + b"," + LENGTH.split()[1]), [400]),
    "empty length": (post(b"Content-Length:"), [400]),
    "hexadecimal length": (post(b"Content-Length: 0x2d"), [400]),
    "length of 2^64": (post(b"Content-Length: 18446744073709551616"), [413]),
    "length of 2^64 and the body's": (post(b"Content-Length: %d" % (2**64 + len(BODY))), [413]),
    "length of 2^63": (post(b"Content-Length: 9223372036854775808"), [413]),
    "coding with a blank": (HEAD + b"Transfer-Encoding: chunked \r\n\r\n" + GOOD, [200, 200]),
    "identity": (HEAD + b"Transfer-Encoding: identity\r\n\r\n", [501]),
    "gzip": (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", [501]),
    "gzip and chunked": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + GOOD, [501]),
    "chunked twice": (HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + GOOD, [501]),
    "xchunked": (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + GOOD, [501]),
    "coding under HTTP/1.0": (b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + GOOD, [400]),
    # chunks
    "chunks": (chunks(GOOD), [200, 200]),
    "extensions": (chunks(SIZE + b';a="b"; c\r\n' + BODY + b"\r\n0;d\r\nX-T: y\r\n\r\n"), [200, 200]),
    "zeros before a size": (chunks(b"0000" + GOOD), [200, 200]),
    "line feed behind a size": (chunks(GOOD.replace(b"\r\n", b"\n", 1)), [400]),
    "line feed in an extension": (chunks(SIZE + b";\n" + BODY + b"\r\n0\r\n\r\n"), [400]),
    "smuggled behind an extension": (chunks(b"5;\nhello\r\n0\r\n\r\n" + SMUGGLED), [400]),
    "line feed behind the data": (chunks(SIZE + b"\r\n" + BODY + b"\n0\r\n\r\n"), [400]),
    "line feed at the end": (chunks(GOOD[:-2] + b"\n"), [400]),
    "carriage return behind the data": (chunks(SIZE + b"\r\n" + BODY + b"\r0\r\n\r\n"), [400]),
    "too much data": (chunks(SIZE + b"\r\n" + BODY + b"x\r\n0\r\n\r\n"), [400]),
    "no size": (chunks(b"\r\n" + BODY), [400]),
    "no digits": (chunks(b"zz\r\n"), [400]),
    "a size with a sign": (chunks(b"+" + GOOD), [400]),
    "a size with 0x": (chunks(b"0x" + GOOD), [400]),
    "a blank behind a size": (chunks(SIZE + b" \r\n" + BODY + b"\r\n0\r\n\r\n"), [400]),
    "control character in an extension": (chunks(SIZE + b";a\0\r\n" + BODY + b"\r\n0\r\n\r\n"), [400]),
    "folded trailer": (chunks(GOOD[:-2] + b"X: a\r\n b\r\n\r\n"), [400]),
    "bare line feed in a trailer": (chunks(GOOD[:-2] + b"X: a\nY: b\r\n\r\n"), [400]),
    "extension of 40,000 bytes": (chunks(SIZE + b";" + b"x" * 40_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), [400]),
    "trailers of 40,000 bytes": (chunks(GOOD[:-2] + b"X: y\r\n" * 7_000 + b"\r\n"), [400]),
    "9 MiB announced": (chunks(b"900000\r\nxx"), [413]),
    "2^63 announced": (chunks(b"8000000000000000\r\nxx"), [413]),
    "2^64 announced": (chunks(b"10000000000000000\r\nxx"), [400]),
    "2^64 and the body's announced": (chunks(b"1" + b"%016x" % len(BODY) + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), [400]),
    # how long the head is: 16 KiB
    "head just as long as it may be": (get(b"GET /health HTTP/1.1", b"X: " + b"y" * (16384 - 46)), [200, 200]),
    "head a byte too long": (get(b"GET /health HTTP/1.1", b"X: " + b"y" * (16384 - 45)), [431]),
    "header of 32 KB": (get(b"GET /health HTTP/1.1", b"X: " + b"y" * 32_400), [431]),
    "header of 10 MB": (get(b"GET /health HTTP/1.1", b"X: " + b"y" * 10_000_000), [431]),
    "480 cookies": (get(b"GET /health HTTP/1.1", b"Cookie: " + b"; ".join(b"c%d=v" % i for i in range(480))), [200, 200]),
    "10,000 headers": (get(b"GET /health HTTP/1.1", *[b"x-i: "] * 10_000), [431]),
    "700 arguments": (get(b"GET /health?" + b"a&" * 700 + b" HTTP/1.1"), [200, 200]),
    "line of 1 MB": (get(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1"), [414]),
    "a flood without a line": (b"G" * 100_000, [414]),
    # conditions
    "an expectation": (post(LENGTH, b"Expect: foo"), [417]),
}


def try_case(port, name):
    """Sends it all, reads to the end; what is wrong, or None."""
    data, expected = CASES[name]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        answer = b""
        try:
            sock.sendall(data + SECOND)
            while part := sock.recv(65536):
                answer += part
        except ConnectionError as error:
            return f"{error!r} after {answer[:200]!r}"
        except TimeoutError:
            return f"no end after {answer[:200]!r}"
    statuses = [int(s) for s in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
    if statuses != expected:
        return f"answers {statuses}, not {expected}: {answer[:300]!r}"
    if expected[0] != 200:
        first = re.split(rb"HTTP/1\.[01] \d{3} ", answer)[1].split(b"\r\n\r\n", 1)[1]
        if "error" not in json.loads(first):
            return f"no error in {first!r}"
    return None


def main():
    failed = 0
    for name in CASES:
        problem = try_case(int(sys.argv[1]), name)
        if problem:
            failed += 1
            print(f"    FAILED  {name}: {problem}")
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
