"""The editor as a browser without script uses it: what its page holds is sent, with changes."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.test import Client


class Form(HTMLParser):
    """The fields of the editor's form as they would be sent, in their order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str]] = []
        self.buttons: list[str] = []
        self._inside = False
        self._select = ""
        self._textarea: str | None = None
        self._text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = given.get("id") == "editor"
        if not self._inside or "disabled" in given:
            return
        match tag:
            case "input" if given.get("type") in ("checkbox", "radio"):
                if "checked" in given:
                    self.pairs.append((given["name"], given.get("value", "on")))
            case "input":
                self.pairs.append((given["name"], given.get("value", "")))
            case "button":
                self.buttons.append(given.get("value", ""))
            case "select":
                self._select = given["name"]
                self.pairs.append((self._select, ""))
            case "option" if "selected" in given:
                self.pairs[-1] = (self._select, given.get("value", ""))
            case "textarea":
                self._textarea, self._text = given["name"], ""

    def handle_data(self, data: str) -> None:
        if self._textarea is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._textarea is not None:
            text = self._text.removeprefix("\n").removeprefix("\r\n")
            self.pairs.append((self._textarea, text.replace("\n", "\r\n")))
            self._textarea = None
        if tag == "form":
            self._inside = False

    def sent(self, do: str, **changes: str | None) -> dict[str, Any]:
        """`__` in a name stands for a dash; None unticks."""
        data: dict[str, list[str]] = {}
        for name, value in self.pairs:
            data.setdefault(name, []).append(value)
        for name, typed in changes.items():
            key = name.replace("__", "-")
            data.pop(key, None)
            data |= {} if typed is None else {key: [typed]}
        return {**data, "do": do}

    def value(self, name: str) -> str:
        return next(value for each, value in self.pairs if each == name)


def opened(client: Client, url: str) -> Form:
    answer = client.get(url)
    assert answer.status_code == 200
    return Form(answer.text)


def pressed(client: Client, form: Form, do: str, url: str, **changes: str | None) -> Form:
    """The form as it is after a button of it that stores nothing."""
    answer = client.post(url, form.sent(do, **changes))
    assert answer.status_code == 200
    return Form(answer.text)
