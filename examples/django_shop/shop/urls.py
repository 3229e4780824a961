"""The shop's pages."""

from django.urls import path

from . import views

urlpatterns = [path("", views.status), path("orders", views.order)]
