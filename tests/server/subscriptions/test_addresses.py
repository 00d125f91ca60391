"""Which URLs and addresses a webhook may have."""

from ipaddress import ip_network

import pytest

from headwater.server.subscriptions.addresses import (
    WebhookRules,
    WebhookUrl,
    check_address,
    check_url,
)
from headwater.server.subscriptions.refusals import WebhookRejected

PUBLIC = WebhookUrl("https", "hooks.example.com", 443, "/", local=False)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/x",
        "https://hooks.example.com:8443/x?y=1",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]/",
    ],
)
def test_public_https_is_allowed(url: str) -> None:
    assert isinstance(check_url(url, WebhookRules()), WebhookUrl)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "hooks.example.com",
        "https://",
        "https://user:pw@hooks.example.com/",
        "https://hooks.example.com@10.0.0.1/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://127.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://100.100.100.200/",
        "https://168.63.129.16/",
        "https://0.0.0.0/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a00:1]/",
        "https://[2002:a00:1::]/",
        "https://[fd00:ec2::254]/",
        "https://[fe80::1]/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://localhost/",
        "https://x.localhost/",
        "https://metadata.google.internal/",
        "https://printer.local/",
        "https://a b/",
        "https://a\\b/",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:99999/",
        "https://exämple.com/",
        "http://127.0.0.1/",
        "http://localhost/",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    assert isinstance(check_url(url, WebhookRules()), WebhookRejected), url


@pytest.mark.parametrize(
    "url", ["http://localhost:3000/", "http://127.0.0.1/", "http://127.0.0.5:99/x"]
)
def test_local_urls_can_be_allowed_for_development(url: str) -> None:
    target = check_url(url, WebhookRules(allow_local=True))
    assert isinstance(target, WebhookUrl)
    assert check_address("127.0.0.1", target, WebhookRules(allow_local=True)) is None
    assert isinstance(
        check_address("10.0.0.1", target, WebhookRules(allow_local=True)), WebhookRejected
    )


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1/hook", "http://example.com/", "http://127.1.0.1/", "http://localhost.a.com/"],
)
def test_development_allows_no_other_local_urls(url: str) -> None:
    assert isinstance(check_url(url, WebhookRules(allow_local=True)), WebhookRejected)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.9.8.7", "fe80::1%eth0", "224.0.0.1"])
def test_a_public_name_must_not_resolve_to_a_local_address(address: str) -> None:
    for rules in (WebhookRules(), WebhookRules(allow_local=True)):
        assert isinstance(check_address(address, PUBLIC, rules), WebhookRejected)
    assert check_address("93.184.216.34", PUBLIC, WebhookRules()) is None


def test_a_list_of_hosts_excludes_all_others() -> None:
    rules = WebhookRules(hosts=("a.example.com", "*.b.example.com"))
    assert isinstance(check_url("https://a.example.com/", rules), WebhookUrl)
    assert isinstance(check_url("https://x.y.b.example.com/", rules), WebhookUrl)
    for host in ("b.example.com", "xb.example.com", "aa.example.com", "8.8.8.8"):
        assert isinstance(check_url(f"https://{host}/", rules), WebhookRejected)


def test_a_network_can_be_allowed() -> None:
    rules = WebhookRules(networks=(ip_network("10.1.0.0/16"),))
    assert isinstance(check_url("https://10.1.2.3/", rules), WebhookUrl)
    assert isinstance(check_url("https://10.2.2.3/", rules), WebhookRejected)
    assert isinstance(check_url("http://10.1.2.3/", rules), WebhookRejected)
    assert check_address("10.1.2.3", PUBLIC, rules) is None
