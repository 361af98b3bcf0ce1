"""HTTP of every part: doors, limits and answers.

uvicorn and starlette, of the extra `admin`, are imported where it serves.
"""
