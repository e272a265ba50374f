"""What each GPU vendor's cards can do, by capability."""
