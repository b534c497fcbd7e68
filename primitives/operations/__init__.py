"""What each operation is: its body, its primitive and its rule; nothing here knows a kernel."""
