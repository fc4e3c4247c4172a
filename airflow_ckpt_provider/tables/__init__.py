"""Where rows land: writers of staged files, and the one commit that references them."""
