"""What people read: feedback pages, the report of a class, exports, similar submissions."""
