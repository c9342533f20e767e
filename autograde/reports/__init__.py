"""The pages and files for people: feedback pages, the report of a class, exports, similar submissions."""
