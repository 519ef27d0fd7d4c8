from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.errors import said
from api.filtering import Filters, TextFilter
from api.looking_back import PartByPart, Times
from api.reading import LongJSONParser, Strict
from api.schema import IDEMPOTENCY_KEY, accepts, acts
from schedules.models import Refused
from workflows.models import Event, Topic
from workflows.models.event import LONGEST_ID, LONGEST_TITLE, MOST_COUNTED, Publication

from .attempts import AnyJson
from .base import Listed, Resource
from .runs import RunNote
from .workflows import OPERATE, SLUG

VIEW, VIEW_EVENT, PUBLISH = "workflows.view_topic", "workflows.view_event", "workflows.publish_event"
MOST_PUBLISHED = 1_000
NEEDED = "An event needs one: it tells events apart."
NOT_BOTH = "Send one event, or a list of events: not both."


class TopicConsumerSerializer(serializers.Serializer[Any]):
    workflow = serializers.CharField(source="workflow.slug")
    handler = serializers.CharField(source="name")


class TopicSerializer(serializers.ModelSerializer[Topic]):
    workflow = serializers.CharField(
        source="workflow.slug", allow_null=True, default=None, help_text="Which brings it along."
    )
    consumer = serializers.SerializerMethodField(help_text="None: nobody consumes it.")
    pending = serializers.SerializerMethodField(help_text="Events that wait; counted up to 1,000.")
    is_more = serializers.SerializerMethodField(help_text="There are more than that.")
    oldest_at = serializers.DateTimeField(allow_null=True, help_text="Since when the first of them waits.")

    class Meta:
        model = Topic
        fields = (
            "slug",
            "title",
            "workflow",
            "consumer",
            "last_seq",
            "pending",
            "is_more",
            "oldest_at",
            "created_at",
        )
        read_only_fields = fields
        extra_kwargs = {"last_seq": {"help_text": "How many events were ever published to it."}}

    @extend_schema_field(TopicConsumerSerializer(allow_null=True))
    def get_consumer(self, topic: Topic) -> Any:
        subscription = getattr(topic, "subscription", None)
        return TopicConsumerSerializer(subscription.handler).data if subscription else None

    def get_pending(self, topic: Any) -> int:
        return min(int(topic.pending_count), MOST_COUNTED)

    def get_is_more(self, topic: Any) -> bool:
        return bool(topic.pending_count > MOST_COUNTED)


class Topics(Listed):
    """Named sequences of events, each consumed by one consumer at most."""

    queryset = Topic.objects.all()
    serializer_class = TopicSerializer
    lookup_field, lookup_value_regex = "slug", SLUG
    orderings = ("slug", "-slug")
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW, "retrieve": VIEW}

    def get_queryset(self) -> Any:
        rows = Topic.objects.select_related("workflow", "subscription__handler__workflow")
        return rows.defer("subscription__handler__state").with_backlog()

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One topic, and what waits in it."""
        return super().retrieve(request, *args, **kwargs)


class EventSerializer(serializers.ModelSerializer[Event]):
    topic = serializers.CharField(source="topic.slug")
    reserved_by = serializers.IntegerField(
        source="reserved_by_id", allow_null=True, help_text="The run that reserved or consumed it."
    )
    created_by = serializers.IntegerField(
        source="created_by_id", allow_null=True, help_text="The run that published it; none: somebody else."
    )

    class Meta:
        model = Event
        fields: tuple[str, ...] = (
            "id",
            "topic",
            "seq",
            "message_id",
            "title",
            "status",
            "attempt",
            "reserved_by",
            "created_by",
            "published_by",
            "created_at",
            "settled_at",
        )
        read_only_fields: tuple[str, ...] = fields
        extra_kwargs = {"attempt": {"help_text": "How often it was released and reserved again, plus one."}}


class EventDetailSerializer(EventSerializer):
    payload = AnyJson()
    caused_by = serializers.ListField(
        child=serializers.IntegerField(), help_text="Ids of the events that led to it."
    )

    class Meta(EventSerializer.Meta):
        fields = (*EventSerializer.Meta.fields, "payload", "caused_by")
        read_only_fields: tuple[str, ...] = fields


class EventWriting(Strict[Any]):
    message_id = serializers.CharField(
        max_length=LONGEST_ID,
        trim_whitespace=False,
        help_text="Tells events apart: what has been published with it already is not published again.",
        error_messages={"required": NEEDED},
    )
    payload = AnyJson(required=False, default=None, allow_null=True, help_text="At most 256 KiB of JSON.")
    title = serializers.CharField(max_length=LONGEST_TITLE, allow_blank=True, default="")


class EventsWriting(EventWriting):
    """One event, or `events`."""

    message_id = serializers.CharField(
        max_length=LONGEST_ID,
        trim_whitespace=False,
        required=False,
        help_text="Of one event; it tells events apart.",
        error_messages={"required": NEEDED},
    )
    events = serializers.ListField(
        child=EventWriting(),
        min_length=1,
        max_length=MOST_PUBLISHED,
        required=False,
        help_text="Several, of which all are published or none; with the same id, the last one counts.",
    )

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and "events" in data:
            if others := [name for name in EventWriting().get_fields() if name in data]:
                raise serializers.ValidationError(dict.fromkeys(others, NOT_BOTH))
        elif isinstance(data, Mapping):
            self.fields["message_id"].required = True
        return super().to_internal_value(data)


class PublishedSerializer(serializers.Serializer[Any]):
    new = serializers.IntegerField()
    updated = serializers.IntegerField(help_text="Pending ones that got this payload.")
    unchanged = serializers.IntegerField(help_text="Those that were reserved, consumed or skipped already.")
    url = serializers.URLField()


class EventFilters(Filters):
    status = filters.ChoiceFilter(choices=Event.Status.choices)
    message_id = TextFilter(help_text="Exactly this one.")


ONE = OpenApiExample(
    "One event",
    value={"message_id": "order-4711", "payload": {"total": 99}, "title": "Order 4711"},
    request_only=True,
)
SEVERAL = OpenApiExample(
    "Several",
    value={"events": [{"message_id": "order-4711", "payload": {"total": 99}}, {"message_id": "order-4712"}]},
    request_only=True,
)


class PartBySeq(PartByPart):
    """Of one topic, whose sequence an index knows."""

    key = "seq"

    def rows(self, view: Any) -> Any:
        return view.queryset.filter(topic=view.topic)

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        ordering = super().get_ordering(request, queryset, view)
        if view.is_looked_for() and ordering[0] == "seq":
            raise serializers.ValidationError({"ordering": "With this status, the newest come first."})
        return ordering


class EventsOfTopic(mixins.ListModelMixin, Resource):
    """The events of a topic, the newest first; their payloads are with each one.

    Filters other than `status=pending` and `message_id` look through the history a part at a time: a page may
    have few rows, or none, and still a `next`.
    """

    queryset = Event.objects.all()
    serializer_class = EventSerializer
    filterset_class = EventFilters
    orderings = ("-seq", "seq")
    pagination_class = PartBySeq
    parser_classes = (LongJSONParser,)
    times = Times("created_at", "", "", reach=50_000)
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW_EVENT, "create": PUBLISH}

    @cached_property
    def topic(self) -> Topic:
        return get_object_or_404(Topic, slug=self.kwargs["topic"])

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        assert self.topic

    def is_looked_for(self) -> bool:
        given = self.request.query_params
        return "message_id" not in given and given.get("status", "pending") != "pending"

    def get_queryset(self) -> Any:
        rows = Event.objects.select_related("topic").defer("payload", "caused_by")
        is_described = getattr(self, "swagger_fake_view", False)
        return rows.none() if is_described else rows.filter(topic=self.topic)

    @extend_schema(
        request=EventsWriting,
        parameters=[IDEMPOTENCY_KEY],
        responses=accepts(PublishedSerializer),
        examples=[ONE, SEVERAL],
    )
    def create(self, request: Request, topic: str) -> Response:
        """Publishes one event or several at once; whoever consumes the topic is woken."""
        wanted = self._wanted(self.read(EventsWriting))
        return self.once(lambda: self._publish(wanted))

    def _publish(self, wanted: list[Publication]) -> Response:
        counts = Topic.objects.publish(wanted, now=self.now, by=self.by)
        body = {"new": counts.new, "updated": counts.updated, "unchanged": counts.unchanged}
        return self.accepted(body, url=reverse("api:topic-event-list", args=[self.topic.slug]))

    def _wanted(self, read: dict[str, Any]) -> list[Publication]:
        """By field, and of several also by number, if one of them cannot be stored."""
        if "events" not in read:
            return [Publication.of(self.topic.slug, **read)]
        wanted, wrong = [], {}
        for number, each in enumerate(read["events"]):
            try:
                wanted.append(Publication.of(self.topic.slug, **each))
            except ValidationError as error:
                wrong[str(number)] = said(error)
        if wrong:
            raise serializers.ValidationError({"events": wrong})
        return wanted


class Events(Resource):
    """One message of a topic, from its publication to its consumption."""

    queryset = Event.objects.select_related("topic")
    serializer_class = EventDetailSerializer
    lookup_value_regex = "[0-9]{1,18}"
    needs: ClassVar[Mapping[str, str]] = {"retrieve": VIEW_EVENT, "skip": OPERATE}

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One event, with its payload."""
        return self.shown(self.get_object())

    @extend_schema(request=RunNote, responses=acts(EventDetailSerializer))
    @action(detail=True, methods=["post"])
    def skip(self, request: Request, pk: str) -> Response:
        """Nobody will consume it."""
        event, read = self.get_object(), self.read(RunNote)
        if not event.skip(read["note"], initiator=self.by, now=self.now):
            raise Refused(f"“{event}” is no longer pending: it is {event.status}.")
        return self.shown(self.get_object())
