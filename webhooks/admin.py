"""The admin pages of webhooks and their deliveries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from database import clock
from operations.admin_pages import InWords, KnownValues, OperationsAdmin, RecordAdmin, VerbsAdmin, text_panel
from operations.form_errors import Unsaved
from operations.initiator import initiator_of
from operations.operation import Done
from schedules.models import Refused, Schedule
from schedules.vault import VaultError
from text.words import NOTHING, as_json, badge, distance, exact, moment
from webhooks.operations import Delete, revealed, trouble

from .events import KINDS, TEST
from .forms import EndpointForm
from .models import Delivery, Endpoint

DELIVERIES_SHOWN = 10
NAMES_SHOWN = 3
SOON_SECONDS = 60


@admin.register(Endpoint)
class EndpointAdmin(VerbsAdmin[Endpoint]):
    form = EndpointForm
    change_form_template = "admin/webhooks/endpoint/change_form.html"
    list_display = ("name", "state", "told_of", "about_schedules", "last_success")
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Endpoint]:
        rows: Any = super().get_queryset(request)
        return rows.present()  # type: ignore[no-any-return]

    def get_fieldsets(self, request: HttpRequest, obj: Endpoint | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": ("name", "url", "description", "told_of", "about_schedules")})]
        first = ("name", "url", "description", *(("secret",) if obj is None else ()))
        return [
            (None, {"fields": first}),
            ("Events", {"fields": ("kinds", "schedules", ("failures", "among"))}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Endpoint | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return ("told_of", "about_schedules")
        return ()

    @method_decorator([sensitive_post_parameters("secret"), sensitive_variables()])
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return super().changeform_view(request, *args, **kwargs)

    @method_decorator([sensitive_post_parameters("secret"), sensitive_variables()])
    def operation_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return super().operation_view(request, *args, **kwargs)

    @method_decorator(sensitive_variables())
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        given = {name: form.cleaned_data[name] for name in Endpoint.EDITABLE}
        by, now = initiator_of(request), clock.now()
        try:
            if change:
                obj.edit(changes=given, initiator=by, now=now)
            else:
                typed = form.cleaned_data["secret"]
                made, secret = Endpoint.objects.define(**given, secret=typed, initiator=by, now=now)
                obj.pk, obj.made_secret = made.pk, "" if typed else secret
        except (Refused, VaultError) as refused:
            raise Unsaved({}, refusal=str(refused)) from refused
        except ValidationError as error:
            raise Unsaved(error.message_dict) from error
        except IntegrityError as error:
            text = "A webhook with this name already exists. Choose another name."
            raise Unsaved({"name": [text]}) from error

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: Any = None) -> HttpResponse:
        """Show a generated secret directly in this response, so that it is not stored for a redirect."""
        if not obj.made_secret:
            return super().response_add(request, obj, post_url_continue)
        done = Done("", reveal=revealed(obj, obj.made_secret))
        url = reverse("admin:webhooks_endpoint_change", args=[obj.pk])
        return self.revelation(request, f"“{obj}” was created", [done], back=url)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(self.operation_url(Delete.name, [object_id]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if endpoint := context.get("original"):
            now = clock.now()
            context["trouble"] = trouble(endpoint, now)
            until = endpoint.old_token_until
            context["old_secret_until"] = until if until and until > now else None
            can_see = request.user.has_perm("webhooks.view_delivery")
            newest = endpoint.deliveries.defer("body", "log").order_by("-pk")
            context["deliveries"] = newest[:DELIVERIES_SHOWN] if can_see else None
        return super().render_change_form(request, context, *args, **kwargs)

    def state(self, endpoint: Endpoint) -> SafeString:
        failing = f" {endpoint.failed_in_a_row} failed in a row" if endpoint.failed_in_a_row else ""
        return format_html("{}{}", badge(endpoint.status), failing)

    @admin.display(description="events")
    def told_of(self, endpoint: Endpoint) -> str:
        return "all" if set(KINDS) <= set(endpoint.kinds) else ", ".join(endpoint.kinds)

    @admin.display(description="schedules")
    def about_schedules(self, endpoint: Endpoint) -> str:
        if not endpoint.schedules:
            return "all"
        rows = Schedule.objects.filter(pk__in=endpoint.schedules).order_by("name")
        names = list(rows.values_list("name", flat=True)[:NAMES_SHOWN])
        rest = len(endpoint.schedules) - len(names)
        return ", ".join(names) + (f" and {rest} more" if rest else "")

    @admin.display(description="last success")
    def last_success(self, endpoint: Endpoint) -> SafeString:
        has_any = endpoint.succeeded_at > endpoint.created_at
        return moment(endpoint.succeeded_at if has_any else None, now=clock.now())


class KindFilter(KnownValues):
    title = "event"
    parameter_name = "kind"

    def values(self) -> Iterable[str]:
        return (*KINDS, TEST)


@admin.register(Delivery)
class DeliveryAdmin(RecordAdmin[Delivery], OperationsAdmin[Delivery]):
    list_display = ("__str__", "state", "endpoint_link", "created", "attempts", "answer", "next_try")
    list_filter: ClassVar = [("status", InWords), KindFilter, "endpoint"]
    list_select_related = ("endpoint",)
    fields = (
        "state",
        "endpoint_link",
        "kind",
        "webhook_id",
        "times",
        "attempts",
        "next_try",
        "answer",
        "note",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Delivery]:
        return super().get_queryset(request).select_related("endpoint")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        delivery: Delivery = context["original"]
        at = delivery.next_try_at
        context["is_moving"] = at is not None and (at - clock.now()).total_seconds() < SOON_SECONDS
        tries = [{**tried, "at": datetime.fromisoformat(tried["at"])} for tried in delivery.log]
        context["panels"] = [
            render_to_string("admin/webhooks/delivery/_tries.html", {"tries": tries[::-1]}),
            text_panel("Content", as_json(json.loads(delivery.body))),
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    def state(self, delivery: Delivery) -> SafeString:
        return badge(delivery.status)

    @admin.display(description="webhook")
    def endpoint_link(self, delivery: Delivery) -> SafeString | str:
        endpoint = delivery.endpoint
        if endpoint.status == Endpoint.Status.REMOVED:
            return f"{endpoint} (deleted)"
        url = reverse("admin:webhooks_endpoint_change", args=[endpoint.pk])
        return format_html('<a href="{}">{}</a>', url, endpoint)

    def created(self, delivery: Delivery) -> SafeString:
        return moment(delivery.created_at, now=clock.now())

    def times(self, delivery: Delivery) -> str:
        created = f"created {exact(delivery.created_at)}"
        return f"{created} · ended {exact(delivery.ended_at)}" if delivery.ended_at else created

    def attempts(self, delivery: Delivery) -> int:
        return delivery.tries

    @admin.display(description="next attempt")
    def next_try(self, delivery: Delivery) -> str:
        at = delivery.next_try_at
        return NOTHING if at is None else distance(max(at, clock.now()), now=clock.now())

    @admin.display(description="last response")
    def answer(self, delivery: Delivery) -> str:
        last = delivery.last_try
        return delivery.note or last.get("error") or (str(last["status"]) if last else NOTHING)

    @admin.display(description="id")
    def webhook_id(self, delivery: Delivery) -> str:
        return delivery.webhook_id
