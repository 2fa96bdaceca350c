"""Passes over a trained model that make it smaller: functions from a model to a model."""
