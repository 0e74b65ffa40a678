"""Reads and writes of documents: find, insert, update, delete, findAndModify, count, distinct."""
