"""The shop's pages, and the admin."""

from django.contrib import admin
from django.urls import path

from . import views

urlpatterns = [path("", views.status), path("orders", views.order), path("admin/", admin.site.urls)]
