"""The tablet server process: replicas of tablets, behind the services that clients, masters and other servers call."""
