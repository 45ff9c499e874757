"""Write-once, verified objects in S3."""
