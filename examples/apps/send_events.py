"""Tasks for the worker of celery_app.py. The last one has a row that the table refuses."""

from celery_app import store, store_many

store.delay(1, "login")
store_many.delay([(number, "login") for number in range(2, 1002)])
store_many.delay([(1002, "login"), (1003, None)])
