"""Bills of materials: a manifest as SPDX 3.0 (AI profile) and as CycloneDX 1.6 (ML-BOM).

Both hold what other tools look for: the model, the data it was trained on, the code and the
packages, with their digests and versions, and the commitment.  The sealed manifest itself is in
them, too, as a text, so that nothing is lost.
"""

from __future__ import annotations

import json
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from typing import Any

Manifest = Mapping[str, Any]

SPDX_VERSION, CYCLONEDX_VERSION = "3.0.1", "1.6"


def _name(manifest: Manifest) -> str:
    return manifest["training"] or " ".join(manifest["argv"]) or "a training"


def _model_version(manifest: Manifest) -> str:
    """The commitment, which is what makes a model this one; else the commit of its code."""
    if manifest["commitment"]:
        return manifest["commitment"]["root"]
    return manifest["code"]["commit"] if manifest["code"] else "unknown"


def _params(manifest: Manifest) -> dict[str, Any] | None:
    return manifest["run"] and manifest["run"]["params"]


def _settings(manifest: Manifest) -> dict[str, str]:
    """Names and values that are neither code nor data."""
    found: dict[str, Any] = {"contract": manifest["contract"]}
    for part in ("versions", "options", "environment", "machine", "seeds", "code"):
        found |= {f"{part}: {name}": value for name, value in (manifest[part] or {}).items()}
    if manifest["entropy"]:
        found["entropy"] = f"sha256:{manifest['entropy']['sha256']}"
    if manifest["metadata"] is not None:
        found["metadata"] = json.dumps(manifest["metadata"], sort_keys=True)
    for i, device in enumerate(manifest["devices"]):
        found[f"device {i}"] = f"{device['count']} {device['kind']} ({device['platform']})"
    return {name: str(value) for name, value in found.items()}


def _said(manifest: Manifest) -> str:
    commitment = manifest["commitment"]
    if not commitment:
        return "No commitment was made."
    return (
        f"{len(commitment['steps'])} steps were committed to by {commitment['root']}; `repjax "
        "verify` repeats them."
    )


def _modules(manifest: Manifest, kind: str) -> list[dict[str, str]]:
    return [x for x in manifest["modules"] if kind in x]


# --- SPDX -------------------------------------------------------------------------------


def spdx(manifest: Manifest) -> dict[str, Any]:
    """The manifest as a document of SPDX 3.0.1 with the profiles core, software, AI, dataset."""
    digest = manifest["seal"].partition(":")[2]
    base = f"urn:repjax:{digest}:"
    created = manifest["created"]
    graph: list[dict[str, Any]] = []

    def add(kind: str, name: str, /, **fields: Any) -> str:
        place = base + urllib.parse.quote(name, safe="/")
        about = {"type": kind, "spdxId": place, "creationInfo": "_:creation"}
        graph.append(about | {k: v for k, v in fields.items() if v is not None})
        return place

    def hashed(x: Mapping[str, Any] | None):
        return x and [{"type": "Hash", "algorithm": "sha256", "hashValue": x["sha256"]}]

    def unknown_place(sha256: str) -> str:
        return f"urn:sha256:{sha256}"  # where it is kept is not known, only what it is

    agent = base + "repjax"
    graph.append(
        {
            "type": "CreationInfo",
            "@id": "_:creation",
            "specVersion": SPDX_VERSION,
            "created": created,
            "createdBy": [agent],
        }
    )
    add("SoftwareAgent", "repjax", name=f"repjax {manifest['versions']['repjax']}")
    params = _params(manifest)
    model = add(
        "ai_AIPackage",
        "model",
        name=_name(manifest),
        suppliedBy=agent,
        releaseTime=created,
        software_packageVersion=_model_version(manifest),
        software_primaryPurpose="model",
        software_downloadLocation=unknown_place(params["sha256"] if params else digest),
        verifiedUsing=hashed(params),
        ai_informationAboutTraining=_said(manifest),
        ai_hyperparameter=[
            {"type": "DictionaryEntry", "key": key, "value": value}
            for key, value in _settings(manifest).items()
        ],
    )
    data = [
        add(
            "dataset_DatasetPackage",
            f"data/{x['file']}",
            name=x["file"],
            comment="Its times and originator are those of the manifest; its own are not known.",
            originatedBy=[agent],
            builtTime=created,
            releaseTime=created,
            software_downloadLocation=unknown_place(x["sha256"]),
            software_primaryPurpose="data",
            dataset_datasetType=["noAssertion"],
            verifiedUsing=hashed(x),
        )
        for x in manifest["data"]
    ]
    packages = [
        add(
            "software_Package",
            f"package/{x['distribution']}",
            name=x["distribution"],
            software_packageVersion=x["version"],
            software_packageUrl=_purl(x),
        )
        for x in _modules(manifest, "distribution")
    ]
    files = [
        add(
            "software_File",
            f"code/{x['file']}",
            name=x["file"],
            software_primaryPurpose="source",
            verifiedUsing=hashed(x),
        )
        for x in _modules(manifest, "module")
    ]
    for kind, to in (("trainedOn", data), ("dependsOn", packages), ("usesTool", files)):
        if to:
            fields = {"from": model, "to": to, "relationshipType": kind}
            add("Relationship", kind, **fields)
    text = json.dumps(manifest, sort_keys=True)
    add(
        "Annotation",
        "manifest",
        annotationType="other",
        contentType="application/json",
        subject=model,
        statement=text,
    )
    elements = [x["spdxId"] for x in graph if "spdxId" in x]
    add(
        "SpdxDocument",
        "document",
        name=f"manifest of {_name(manifest)}",
        profileConformance=["core", "software", "ai", "dataset"],
        rootElement=[model],
        element=elements,
    )
    return {
        "@context": f"https://spdx.org/rdf/{SPDX_VERSION}/spdx-context.jsonld",
        "@graph": graph,
    }


def _purl(x: Mapping[str, str]) -> str:
    name = x["distribution"].lower().replace("_", "-")
    return f"pkg:pypi/{name}@{urllib.parse.quote(x['version'])}"


# --- CycloneDX --------------------------------------------------------------------------


def cyclonedx(manifest: Manifest) -> dict[str, Any]:
    """The manifest as a bill of CycloneDX 1.6, whose main component is the model."""

    def hashes(x: Mapping[str, Any]) -> list[dict[str, str]]:
        return [{"alg": "SHA-256", "content": x["sha256"]}]

    def properties(found: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"name": f"repjax:{name}", "value": value} for name, value in found.items()]

    data = [
        {
            "type": "data",
            "bom-ref": f"data/{x['file']}",
            "name": x["file"],
            "hashes": hashes(x),
            "data": [{"type": "dataset", "name": x["file"]}],
        }
        for x in manifest["data"]
    ]
    packages = [
        {
            "type": "library",
            "bom-ref": f"package/{x['distribution']}",
            "name": x["distribution"],
            "version": x["version"],
            "purl": _purl(x),
        }
        for x in _modules(manifest, "distribution")
    ]
    files = [
        {"type": "file", "bom-ref": f"code/{x['file']}", "name": x["file"], "hashes": hashes(x)}
        for x in _modules(manifest, "module")
    ]
    params = _params(manifest)
    said = {"training": _said(manifest), **_settings(manifest)}
    said["manifest"] = json.dumps(manifest, sort_keys=True)
    model = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": _name(manifest),
        "version": _model_version(manifest),
        **({"hashes": hashes(params)} if params else {}),
        "modelCard": {
            "modelParameters": {"datasets": [{"ref": x["bom-ref"]} for x in data]},
            "properties": properties(said),
        },
    }
    components = [*data, *packages, *files]
    tool = {"type": "application", "name": "repjax", "version": manifest["versions"]["repjax"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": CYCLONEDX_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, manifest['seal'])}",
        "version": 1,
        "metadata": {
            "timestamp": manifest["created"],
            "tools": {"components": [tool]},
            "component": model,
        },
        "components": components,
        "dependencies": [{"ref": "model", "dependsOn": [x["bom-ref"] for x in components]}],
    }


FORMATS: dict[str, Callable[[Manifest], dict[str, Any]]] = {"spdx": spdx, "cyclonedx": cyclonedx}
