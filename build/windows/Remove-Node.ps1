<#
.SYNOPSIS
Makes this node a bare server again, by kubelet.exe node leave. Drain it first: kubectl drain NODE --ignore-daemonsets --delete-emptydir-data
.DESCRIPTION
Logs and pods' volumes stay without -RemoveData.
#>
[CmdletBinding()]
param(
    [string] $Target = 'C:\k',
    [switch] $RemoveData
)
$ErrorActionPreference = 'Stop'
$kubelet = Join-Path $Target 'kubelet.exe'
if (-not (Test-Path $kubelet)) {
    throw "$kubelet is not there: want -Target with the directory of the installed programs, or kubelet.exe node leave from any directory"
}
$flags = @('node', 'leave', "--target=$Target")
if ($RemoveData) {
    $flags += '--remove-data'
}
& $kubelet $flags
if ($LASTEXITCODE -ne 0) {
    exit $LASTEXITCODE
}
# The program could not remove itself while it ran.
Remove-Item "$kubelet.*" -ErrorAction SilentlyContinue
if ((Test-Path $Target) -and -not (Get-ChildItem $Target)) {
    Remove-Item $Target
}
