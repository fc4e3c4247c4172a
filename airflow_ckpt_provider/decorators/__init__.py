"""Decorators: a function of a DAG file becomes the stage of a write, which recovers by itself as any stage does."""
