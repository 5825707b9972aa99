"""The mathematics: noise, votes, mechanisms, events, and what events cost."""
