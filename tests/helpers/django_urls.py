"""The URLs of the Django that the tests run in their own process."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
