"""Topics and their events."""

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

from api.errors import errors_by_field
from api.filtering import Filters, TextFilter
from api.paging import HistoryPages, HistoryRange
from api.reading import LongJSONParser, Strict
from api.schema import IDEMPOTENCY_KEY, accepted, performed
from schedules.models import Refused
from workflows.models import Event, Topic
from workflows.models.event import LONGEST_ID, LONGEST_TITLE, MOST_COUNTED, Publication

from .attempts import AnyJson
from .base import ListedResource, Resource
from .runs import ResolveOptions
from .workflows import OPERATE, SLUG

VIEW, VIEW_EVENT, PUBLISH = "workflows.view_topic", "workflows.view_event", "workflows.publish_event"
MOST_PUBLISHED = 1_000
NEEDED = "Add a “message_id”, which identifies the event in its topic."
NOT_BOTH = "Send either the fields of one event or a list of events in “events”, not both."


class TopicConsumerSerializer(serializers.Serializer[Any]):
    workflow = serializers.CharField(source="workflow.slug")
    handler = serializers.CharField(source="name")


class TopicSerializer(serializers.ModelSerializer[Topic]):
    workflow = serializers.CharField(
        source="workflow.slug",
        allow_null=True,
        default=None,
        help_text="The workflow that declares the topic. Null if no workflow declares the topic.",
    )
    consumer = serializers.SerializerMethodField(
        help_text="The consumer of the topic. Null if the topic has no consumer."
    )
    pending = serializers.SerializerMethodField(
        help_text="Number of pending events in the topic, up to 1,000."
    )
    is_more = serializers.SerializerMethodField(
        help_text="Whether the topic has more pending events than `pending` says."
    )
    oldest_at = serializers.DateTimeField(
        allow_null=True, help_text="When the oldest pending event was published."
    )

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
        extra_kwargs = {
            "last_seq": {
                "help_text": "The sequence number of the newest event, which is also the number of events "
                "ever added to the topic."
            }
        }

    @extend_schema_field(TopicConsumerSerializer(allow_null=True))
    def get_consumer(self, topic: Topic) -> Any:
        subscription = getattr(topic, "subscription", None)
        return TopicConsumerSerializer(subscription.handler).data if subscription else None

    def get_pending(self, topic: Any) -> int:
        return min(int(topic.pending_count), MOST_COUNTED)

    def get_is_more(self, topic: Any) -> bool:
        return bool(topic.pending_count > MOST_COUNTED)


class Topics(ListedResource):
    """List the topics.

    Each topic has at most one consumer.
    """

    queryset = Topic.objects.all()
    serializer_class = TopicSerializer
    lookup_field, lookup_value_regex = "slug", SLUG
    orderings = ("slug", "-slug")
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW, "retrieve": VIEW}

    def get_queryset(self) -> Any:
        rows = Topic.objects.select_related("workflow", "subscription__handler__workflow")
        return rows.defer("subscription__handler__state").with_backlog()

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a topic, with the number of its pending events."""
        return super().retrieve(request, *args, **kwargs)


class EventSerializer(serializers.ModelSerializer[Event]):
    topic = serializers.CharField(source="topic.slug")
    reserved_by = serializers.IntegerField(
        source="reserved_by_id",
        allow_null=True,
        help_text="The id of the run that reserved or consumed the event.",
    )
    created_by = serializers.IntegerField(
        source="created_by_id",
        allow_null=True,
        help_text="The id of the run that published the event. Null if the event was not published by a run.",
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
        extra_kwargs = {
            "attempt": {
                "help_text": "Starts at 1 and increases by 1 each time the event is released for another "
                "attempt."
            }
        }


class EventDetailSerializer(EventSerializer):
    payload = AnyJson()
    caused_by = serializers.ListField(
        child=serializers.IntegerField(), help_text="The ids of the events that led to this event."
    )

    class Meta(EventSerializer.Meta):
        fields = (*EventSerializer.Meta.fields, "payload", "caused_by")
        read_only_fields: tuple[str, ...] = fields


class NewEvent(Strict[Any]):
    message_id = serializers.CharField(
        max_length=LONGEST_ID,
        trim_whitespace=False,
        help_text="An id of your choice that identifies the event in its topic. Publishing the same id again "
        "does not add another event.",
        error_messages={"required": NEEDED},
    )
    payload = AnyJson(
        required=False,
        default=None,
        allow_null=True,
        help_text="The content of the event: any JSON value of at most 256 KiB.",
    )
    title = serializers.CharField(max_length=LONGEST_TITLE, allow_blank=True, default="")


class NewEvents(NewEvent):
    """Either the fields of one event, or several events in `events`."""

    message_id = serializers.CharField(
        max_length=LONGEST_ID,
        trim_whitespace=False,
        required=False,
        help_text="An id of your choice that identifies the event in its topic. Required unless you send "
        "`events`.",
        error_messages={"required": NEEDED},
    )
    events = serializers.ListField(
        child=NewEvent(),
        min_length=1,
        max_length=MOST_PUBLISHED,
        required=False,
        help_text="A batch of events. Either all events are published or none. If several events have the "
        "same `message_id`, only the last one is used.",
    )

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and "events" in data:
            if others := [name for name in NewEvent().get_fields() if name in data]:
                raise serializers.ValidationError(dict.fromkeys(others, NOT_BOTH))
        elif isinstance(data, Mapping):
            self.fields["message_id"].required = True
        return super().to_internal_value(data)


class PublishResultSerializer(serializers.Serializer[Any]):
    new = serializers.IntegerField(help_text="Number of events that were added.")
    updated = serializers.IntegerField(
        help_text="Number of events that had already been published, were still pending, and received the "
        "new payload."
    )
    unchanged = serializers.IntegerField(
        help_text="Number of events that stayed unchanged because they were already reserved, consumed or "
        "skipped."
    )
    url = serializers.URLField(
        help_text="The URL of the topic's events. The Location header contains the same URL."
    )


class EventFilters(Filters):
    status = filters.ChoiceFilter(choices=Event.Status.choices)
    message_id = TextFilter(help_text="Return only the event with exactly this message id.")


ONE = OpenApiExample(
    "One event",
    value={"message_id": "order-4711", "payload": {"total": 99}, "title": "Order 4711"},
    request_only=True,
)
SEVERAL = OpenApiExample(
    "Several events",
    value={"events": [{"message_id": "order-4711", "payload": {"total": 99}}, {"message_id": "order-4712"}]},
    request_only=True,
)


class TopicHistoryPages(HistoryPages):
    """Pages of the events of one topic, which are scanned in the order of their sequence numbers."""

    key = "seq"

    def rows(self, view: Any) -> Any:
        return view.queryset.filter(topic=view.topic)

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        ordering = super().get_ordering(request, queryset, view)
        if view.scans_history() and ordering[0] == "seq":
            raise serializers.ValidationError(
                {"ordering": "With this status filter, the only available ordering is “-seq”."}
            )
        return ordering


class EventsOfTopic(mixins.ListModelMixin, Resource):
    """List the events of a topic, newest first, without their payloads.

    With a `status` filter other than `pending`, each page searches only a limited part of the history. Even a
    short or empty page can then have a `next` link.
    """

    queryset = Event.objects.all()
    serializer_class = EventSerializer
    filterset_class = EventFilters
    orderings = ("-seq", "seq")
    pagination_class = TopicHistoryPages
    parser_classes = (LongJSONParser,)
    history_range = HistoryRange("created_at", "", "", reach=50_000)
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW_EVENT, "create": PUBLISH}

    @cached_property
    def topic(self) -> Topic:
        return get_object_or_404(Topic, slug=self.kwargs["topic"])

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        assert self.topic

    def scans_history(self) -> bool:
        given = self.request.query_params
        return "message_id" not in given and given.get("status", "pending") != "pending"

    def get_queryset(self) -> Any:
        rows = Event.objects.select_related("topic").defer("payload", "caused_by")
        is_described = getattr(self, "swagger_fake_view", False)
        return rows.none() if is_described else rows.filter(topic=self.topic)

    @extend_schema(
        request=NewEvents,
        parameters=[IDEMPOTENCY_KEY],
        responses=accepted(PublishResultSerializer),
        examples=[ONE, SEVERAL],
    )
    def create(self, request: Request, topic: str) -> Response:
        """Publish one event or several at once.

        The consumer of the topic then runs as soon as possible.
        """
        publications = self._publications(self.read(NewEvents))
        return self.once(lambda: self._publish(publications))

    def _publish(self, publications: list[Publication]) -> Response:
        counts = Topic.objects.publish(publications, now=self.now, by=self.by)
        body = {"new": counts.new, "updated": counts.updated, "unchanged": counts.unchanged}
        return self.accepted(body, url=reverse("api:topic-event-list", args=[self.topic.slug]))

    def _publications(self, read: dict[str, Any]) -> list[Publication]:
        """Return the events to publish, or raise a ValidationError with the errors by field.

        In a batch, the errors are grouped by the position of the event, counted from 0, and then by field.
        """
        if "events" not in read:
            return [Publication.of(self.topic.slug, **read)]
        publications, errors = [], {}
        for number, each in enumerate(read["events"]):
            try:
                publications.append(Publication.of(self.topic.slug, **each))
            except ValidationError as error:
                errors[str(number)] = errors_by_field(error)
        if errors:
            raise serializers.ValidationError({"events": errors})
        return publications


class Events(Resource):
    """Single events of topics."""

    queryset = Event.objects.select_related("topic")
    serializer_class = EventDetailSerializer
    lookup_value_regex = "[0-9]{1,18}"
    needs: ClassVar[Mapping[str, str]] = {"retrieve": VIEW_EVENT, "skip": OPERATE}

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve an event with its payload."""
        return self.respond_with(self.get_object())

    @extend_schema(request=ResolveOptions, responses=performed(EventDetailSerializer))
    @action(detail=True, methods=["post"])
    def skip(self, request: Request, pk: str) -> Response:
        """Skip a pending event, so that it is not consumed."""
        event, read = self.get_object(), self.read(ResolveOptions)
        if not event.skip(read["note"], initiator=self.by, now=self.now):
            raise Refused(
                f"The event “{event}” is already {event.status}. Only pending events can be skipped."
            )
        return self.respond_with(self.get_object())
