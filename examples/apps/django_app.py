"""Events to a file, with Django: EVENTS=events.jsonl gunicorn -c gunicorn_conf.py django_app:app"""

import json
import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

import sluicegate
from sluicegate.files import FileSink

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY=os.urandom(32).hex())
django.setup()

batcher = sluicegate.BlockingBatcher[dict[str, object]](
    FileSink(os.environ["EVENTS"]), name="events", shutdown_deadline=15
)


def take(request: HttpRequest) -> HttpResponse:
    try:
        batcher.add(json.loads(request.body), timeout=0.1)
    except sluicegate.AddTimeout as error:
        return HttpResponse(status=503, headers={"Retry-After": f"{error.retry_after:.0f}"})
    return HttpResponse(status=202)


urlpatterns = [path("events", csrf_exempt(take))]
app = get_wsgi_application()
